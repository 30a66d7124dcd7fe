/** A new element with these properties and children. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The page's element of this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** One of the page's icons. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A button with an icon and a label; `quiet` ones show the icon alone. */
export function button(name, label, onclick, quiet = false) {
  const made = element("button", { type: "button", className: quiet ? "quiet" : "small", onclick }, icon(name));
  if (quiet) {
    made.setAttribute("aria-label", label);
    made.title = label;
  } else made.append(label);
  return made;
}

export function scrollToEnd() {
  scrollTo({ top: document.documentElement.scrollHeight });
}

/** Make a change, and stay at the end of the page if it was in sight. */
export function whileAtTheEnd(change) {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  const following = scrollHeight - clientHeight - scrollTop < 80;
  change();
  if (following) scrollToEnd();
}
