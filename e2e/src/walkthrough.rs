//! Runs the commands of a document and compares their output with the document.
//!
//! In blocks that begin with ` ```console ` a line after `$ ` is a command, which goes on after
//! a backslash at a line's end. The lines after it are its output: compared by their
//! [shape](shape::of), with `…` alone in a line for lines that are left out. A command may fail
//! only where a line is shown that begins with `error`, in whatever case.

pub mod shape;
mod shell;
#[cfg(test)]
mod tests;

pub use shell::{Outcome, Shell};

use std::ops::Range;

/// A document, read.
#[derive(Debug)]
pub struct Document {
    lines: Vec<String>,
    steps: Vec<Step>,
}

/// One command, and what is shown for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line of the command, from 1.
    pub line: usize,
    /// What the shell is given.
    pub command: String,
    /// The output that the document shows.
    pub shown: Vec<String>,
    /// Where that is, in lines from 0.
    place: Range<usize>,
}

const BEGIN: &str = "```console";
const END: &str = "```";
const PROMPT: &str = "$ ";

/// In place of lines that are left out.
const ELISION: &str = "…";

// === impl Document ===

impl Document {
    /// Parses a document. An error names the line of the mistake.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut steps = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            at = match lines[at].as_str() {
                BEGIN => read_block(&lines, at + 1, &mut steps)?,
                _ => at + 1,
            };
        }
        Ok(Self { lines, steps })
    }

    /// Its commands, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The document with outputs as they were seen, one for each command. Lines that are left
    /// out stay so, as long as the others have the shape of what is shown.
    pub fn with(&self, seen: &[Vec<String>]) -> String {
        assert_eq!(seen.len(), self.steps.len(), "each command has an output");
        let mut text = Vec::new();
        let mut from = 0;
        for (step, seen) in self.steps.iter().zip(seen) {
            text.extend_from_slice(&self.lines[from..step.place.start]);
            text.extend(step.renewed(seen));
            from = step.place.end;
        }
        text.extend_from_slice(&self.lines[from..]);
        text.join("\n") + "\n"
    }
}

/// Reads the steps of one block: the line after it.
fn read_block(lines: &[String], from: usize, steps: &mut Vec<Step>) -> Result<usize, String> {
    let length = lines[from..].iter().position(|line| line == END);
    let Some(length) = length else {
        return Err(format!("line {from}: this block has no end"));
    };
    let end = from + length;
    let mut at = from;
    while at < end {
        let step = read_step(&lines[..end], at)?;
        at = step.place.end;
        steps.push(step);
    }
    Ok(end + 1)
}

/// Reads a command and its output, which ends before the next command or with the block.
fn read_step(lines: &[String], from: usize) -> Result<Step, String> {
    let line = from + 1;
    let Some(first) = lines[from].strip_prefix(PROMPT) else {
        return Err(format!("line {line}: no command has this output"));
    };
    let mut command = first.to_owned();
    let mut at = from + 1;
    while command.ends_with('\\') {
        let Some(next) = lines.get(at) else {
            return Err(format!("line {line}: the command has no end"));
        };
        command = format!("{command}\n{next}");
        at += 1;
    }
    let rest = &lines[at..];
    let length = rest.iter().position(|line| line.starts_with(PROMPT));
    let place = at..at + length.unwrap_or(rest.len());
    Ok(Step {
        line,
        command,
        shown: lines[place.clone()].to_vec(),
        place,
    })
}

// === impl Step ===

impl Step {
    /// Whether the document shows that the command fails.
    pub fn may_fail(&self) -> bool {
        let is_error = |line: &String| line.to_lowercase().starts_with("error");
        self.shown.iter().any(is_error)
    }

    /// Whether an output has the shape of the one that is shown; else how they differ.
    pub fn judge(&self, seen: &[String]) -> Result<(), String> {
        let (wanted, found) = (shapes(&self.shown), shapes(seen));
        match align(&wanted, &found, 0) {
            Some(_) => Ok(()),
            None => Err(difference(&self.shown, seen, &wanted, &found)),
        }
    }

    /// An output as it is to be shown.
    fn renewed(&self, seen: &[String]) -> Vec<String> {
        let Some(lines) = align(&shapes(&self.shown), &shapes(seen), 0) else {
            return seen.to_vec();
        };
        let line = |line: Option<usize>| line.map_or(ELISION.to_owned(), |at| seen[at].clone());
        lines.into_iter().map(line).collect()
    }
}

fn shapes(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| shape::of(line)).collect()
}

/// Which line stands for each of a pattern, from `at` on; none for [`ELISION`], which is any
/// number of them. None if they do not match the pattern.
fn align(pattern: &[String], lines: &[String], at: usize) -> Option<Vec<Option<usize>>> {
    let Some((first, rest)) = pattern.split_first() else {
        return (at == lines.len()).then(Vec::new);
    };
    let (stands, mut found) = if first == ELISION {
        let mut after = at..=lines.len();
        (None, after.find_map(|at| align(rest, lines, at))?)
    } else {
        lines.get(at).filter(|line| *line == first)?;
        (Some(at), align(rest, lines, at + 1)?)
    };
    found.insert(0, stands);
    Some(found)
}

/// Both outputs as a person reads them: what is equal at the beginning and at the end once, what
/// is between from both.
fn difference(shown: &[String], seen: &[String], wanted: &[String], found: &[String]) -> String {
    let same = |pair: &(&String, &String)| pair.0 == pair.1;
    let head = wanted.iter().zip(found).take_while(same).count();
    let (after, behind) = (&wanted[head..], &found[head..]);
    let tail = after.iter().rev().zip(behind.iter().rev());
    let tail = tail.take_while(same).count();
    let mut text = Vec::new();
    let mut say = |mark: &str, lines: &[String]| {
        text.extend(lines.iter().map(|line| format!("{mark} {line}")));
    };
    say(" ", &shown[..head]);
    say("-", &shown[head..shown.len() - tail]);
    say("+", &seen[head..seen.len() - tail]);
    say(" ", &shown[shown.len() - tail..]);
    text.join("\n")
}
