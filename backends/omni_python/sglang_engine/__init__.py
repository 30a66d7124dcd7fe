"""Running a decoder on a real SGLang scheduler in this process. Only this package knows anything of SGLang."""
