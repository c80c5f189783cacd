// A table to begin with, and what to ask of each row: the first rows of examples/notes.csv, with its template and schema.
const MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December";

export const EXAMPLE = {
  name: "notes.csv",
  rows: [
    "Taxi from the airport to the hotel on March 3, 2026, $48.50, paid in cash.",
    "Please find attached our invoice for $1,250, payable by April 15, 2026.",
    "A parking ticket of $35 was issued on January 7, 2026 in Mill Lane.",
    "Lunch with two clients at the harbor on May 12, 2026. The bill came to $96.40.",
    "Hello, I sent back the gray coat on February 2, 2026 and still wait for my $89.95.",
    "The plumber came on June 19, 2026, changed the faucet in the kitchen and took $140.",
    "Train ticket Boston to Albany, coach, $18.20, valid on October 23, 2026.",
    "Rent for apartment 4B: $1,180, received on September 1, 2026 with thanks.",
    "The choir owes the printer $62.30 for programs, due November 30, 2026.",
    "On July 9, 2026 the vet charged us $54.00 for the vaccination of both cats.",
  ],
  template: "{{ note }}\n\nWhat are the amount and the date?",
  fields: [
    { name: "amount", pattern: "^\\$[0-9]+\\.[0-9]{2}$" },
    { name: "date", pattern: `^(${MONTHS}) [0-9]{1,2}, [0-9]{4}$` },
  ],
};

export const exampleFile = () =>
  new File([["note", ...EXAMPLE.rows.map((note) => `"${note.replaceAll('"', '""')}"`)].join("\n") + "\n"], EXAMPLE.name);
