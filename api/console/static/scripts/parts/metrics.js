// Prometheus' text format, as far as the console needs it.
const LINE = /^(medusaq_\w+)(?:\{(.*)\})? (\S+)/;

// The sum of a metric over its samples with this label, as 'priority="bulk"'.
export function total(text, name, label = "") {
  let sum = 0;
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (found && found[1] === `medusaq_${name}` && (found[2] ?? "").includes(label)) sum += Number(found[3]);
  }
  return sum;
}
