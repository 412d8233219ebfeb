// Two scales, made here: one for weights from 0 to 1, even to the eye from end to end, and one for signed numbers around 0.
// What is 0 looks like the paper it is drawn on: by day 1 is dark, in the dark the same table is read from its other end.

const STEPS = 256;

/** What is printed is drawn as by day. */
const paper = { now: false };

export function onPaper(now) {
  paper.now = now;
}

export function isDark() {
  if (paper.now) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** OKLab's lightness, chroma and hue as linear red, green and blue. */
function linear(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180),
    b = chroma * Math.sin((hue * Math.PI) / 180);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const small = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * small,
    -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * small,
    -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * small,
  ];
}

function encoded(value) {
  const clipped = Math.min(1, Math.max(0, value));
  return Math.round(255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055));
}

/** The colour, with less chroma where a screen can't show as much. */
function screen(lightness, chroma, hue) {
  let found = linear(lightness, chroma, hue);
  while (chroma > 0.001 && found.some((part) => part < -1e-4 || part > 1.0001)) {
    chroma *= 0.96;
    found = linear(lightness, chroma, hue);
  }
  const turn = (hue * Math.PI) / 180;
  return { rgb: found.map(encoded), lab: [lightness, chroma * Math.cos(turn), chroma * Math.sin(turn)] };
}

/** From pale sand through teal to deep blue; the steps between neighbours are all as large. */
function even() {
  const fine = Array.from({ length: 2048 }, (_, place) => {
    const part = place / 2047;
    return screen(0.985 - 0.735 * part, 0.012 + 0.125 * Math.sin(Math.PI * part * 0.95), 95 + 170 * part ** 0.75);
  });
  const way = [0];
  for (let place = 1; place < fine.length; place += 1) way.push(way[place - 1] + apart(fine[place].lab, fine[place - 1].lab));
  let place = 0;
  return Array.from({ length: STEPS }, (_, step) => {
    const wanted = (way.at(-1) * step) / (STEPS - 1);
    while (place < way.length - 1 && way[place] < wanted) place += 1;
    return fine[place].rgb;
  });
}

function apart(one, other) {
  return Math.hypot(...one.map((part, axis) => part - other[axis]));
}

/** Orange below, the paper at 0, blue above. */
function around(dark) {
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const value = (2 * step) / STEPS - 1,
      size = Math.abs(value);
    const lightness = dark ? 0.235 + 0.545 * size : 0.985 - 0.5 * size;
    return screen(lightness, 0.16 * size ** 0.9, value < 0 ? 52 : 255).rgb;
  });
}

export const EVEN = even();
const AROUND = { light: around(false), dark: around(true) };

/** The colour of a weight between 0 and 1, as [red, green, blue]. */
export function shade(value) {
  const step = Math.round((STEPS - 1) * Math.min(1, Math.max(0, value || 0)));
  return EVEN[isDark() ? STEPS - 1 - step : step];
}

/** The colour of a number between −1 and 1. */
export function signed(value) {
  return AROUND[isDark() ? "dark" : "light"][Math.round((STEPS * (Math.min(1, Math.max(-1, value || 0)) + 1)) / 2)];
}

export function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white, whichever can be read on a colour. */
export function ink([red, green, blue]) {
  const light = (part) => (part <= 10.31 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue) > 0.179 ? "#000" : "#fff";
}

/** A cell's ground and writing, for an element's style. */
export function tinted(rgb) {
  return { "background-color": css(rgb), color: ink(rgb) };
}

/** Told apart by every eye (Okabe and Ito's), for lines beside each other. */
export function lines() {
  return isDark()
    ? ["#56b4e9", "#e69f00", "#2fc795", "#e3a1c6", "#f0e442", "#ff8a3d", "#9db7ff", "#cccccc"]
    : ["#0072b2", "#b34d00", "#00795a", "#a8457e", "#8a6a00", "#1f5f8b", "#6b4fbb", "#555555"];
}
