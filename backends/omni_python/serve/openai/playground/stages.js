/** The waterfall's bars of the server's stages, from what it adds to a request's usage; none where it adds nothing. */
export function stages(usage) {
  return [];
}
