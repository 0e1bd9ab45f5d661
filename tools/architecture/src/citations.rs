//! Everything that code and documents refer to is in the repository.

use std::collections::BTreeSet;

use crate::File;

/// Numbered statements that may be cited.
#[derive(Clone, Debug, Default)]
pub struct Numbered {
    cited: BTreeSet<String>,
}

/// Words that look like a citation in Rust and are types.
const TYPES: &[&str] = &["I8", "I16", "I32", "I64", "F16", "F32", "F64"];

/// Where people and machines keep files: a path below these is of one machine. Written in two
/// parts, because this file is checked too.
const MACHINES: &[(&str, &str)] = &[
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
    ("/ro", "ot/"),
];

// === impl Numbered ===

impl Numbered {
    /// Those that a document defines: the first cells of its tables.
    pub fn define(&mut self, document: &str) {
        let cells = document.lines().filter_map(|line| line.strip_prefix("| "));
        let first = cells.filter_map(|line| line.split_once(" |"));
        let numbers = first.filter(|(cell, _)| is_number(cell));
        self.cited.extend(numbers.map(|(cell, _)| cell.to_owned()));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.cited.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cited.is_empty()
    }
}

/// What is cited and not there. `files` are all text files; `paths` all files.
pub fn check(files: &[File], paths: &BTreeSet<String>, numbered: &Numbered) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files {
        if file.has_extension("rs") {
            numbers(file, numbered, &mut wrong);
        }
        if file.has_extension("md") {
            links(file, files, paths, &mut wrong);
        } else {
            documents(file, paths, &mut wrong);
        }
        machines(file, &mut wrong);
    }
    wrong
}

/// Rules, invariants and faults: `R28`, `I6`, `F1`.
fn numbers(file: &File, numbered: &Numbered, wrong: &mut Vec<String>) {
    for (at, line) in lines(file) {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        for word in words.map(|word| word.trim_end_matches(':')) {
            let cites = is_number(word) && !TYPES.contains(&word);
            if cites && !numbered.cited.contains(word) {
                wrong.push(format!(
                    "{}:{at} cites {word}, which no document defines",
                    file.path
                ));
            }
        }
    }
}

/// Documents that code names, and sections of documents that it does not name.
fn documents(file: &File, paths: &BTreeSet<String>, wrong: &mut Vec<String>) {
    for (at, line) in lines(file) {
        let words = line.split(|c: char| !c.is_alphanumeric() && !"._-/".contains(c));
        for word in words.map(|word| word.trim_end_matches('.').trim_start_matches(['.', '/'])) {
            // An address of this repository names a file of it.
            let word = word
                .rsplit_once("/blob/main/")
                .map_or(word, |(_, path)| path);
            let known = || {
                paths
                    .iter()
                    .any(|path| path == word || path.ends_with(&format!("/{word}")))
            };
            if word.len() > 3 && word.ends_with(".md") && !known() {
                wrong.push(format!(
                    "{}:{at} names {word}, which is not here",
                    file.path
                ));
            }
        }
        // A section of a standard is fine, its number stands beside it.
        let section = line
            .match_indices("section ")
            .any(|(at, found)| line[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()));
        if (section || line.contains('\u{a7}')) && !line.contains("RFC") {
            wrong.push(format!("{}:{at} cites a section of no document", file.path));
        }
    }
}

/// Links in documents lead to files, and to headings.
fn links(file: &File, files: &[File], paths: &BTreeSet<String>, wrong: &mut Vec<String>) {
    for (at, line) in lines(file) {
        for target in line.split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => file.path.clone(),
                path => join(file.directory(), path),
            };
            let directory = format!("{path}/");
            let exists = paths.contains(&path) || paths.iter().any(|p| p.starts_with(&directory));
            if !exists {
                wrong.push(format!(
                    "{}:{at} links to {target}, which is not here",
                    file.path
                ));
            } else if !heading.is_empty() && !has_heading(files, &path, heading) {
                wrong.push(format!(
                    "{}:{at} links to {target}, which has no such heading",
                    file.path
                ));
            }
        }
    }
}

fn machines(file: &File, wrong: &mut Vec<String>) {
    for (at, line) in lines(file) {
        for (begin, end) in MACHINES {
            let directory = format!("{begin}{end}");
            let found = line.match_indices(&directory).any(|(at, _)| {
                // A part of a longer path is nobody's home.
                !line[..at]
                    .ends_with(|c: char| c.is_alphanumeric() || "}\"_.-".contains(c) && c != '"')
            });
            if found {
                wrong.push(format!(
                    "{}:{at} has a path of one machine, {directory}",
                    file.path
                ));
            }
        }
    }
}

fn lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    file.text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
}

/// A letter of the three kinds, and one or two digits.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(['R', 'I', 'F']).unwrap_or_default();
    matches!(digits.len(), 1 | 2) && digits.bytes().all(|b| b.is_ascii_digit())
}

fn join(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn has_heading(files: &[File], path: &str, heading: &str) -> bool {
    let Some(file) = files.iter().find(|file| file.path == path) else {
        return false;
    };
    let headings = file.text.lines().filter(|line| line.starts_with('#'));
    headings.map(slug).any(|slug| slug == heading)
}

/// As GitHub makes it.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests;
