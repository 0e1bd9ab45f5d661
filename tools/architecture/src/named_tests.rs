//! Every test that a document names exists.

use crate::File;

#[cfg(test)]
mod tests;

/// Links of the form ``[`test_name`](../path/to/file.rs)`` whose file has no such test. `document`
/// is the path of the document among `files`.
pub fn check(files: &[File], document: &str) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == document) else {
        return vec![format!("{document} is missing")];
    };
    let named = named(&document.text);
    let missing = named.into_iter().filter(|(name, link)| {
        let path = resolve(document.directory(), link);
        let file = files.iter().find(|file| file.path == path);
        !file.is_some_and(|file| has_test(&file.text, name))
    });
    missing
        .map(|(name, link)| {
            format!(
                "{} names the test {name}, which {link} does not have",
                document.path
            )
        })
        .collect()
}

/// Tests that a document names, with the links to their files.
pub fn named(text: &str) -> Vec<(&str, &str)> {
    let links = text.split("[`").skip(1);
    let links = links.filter_map(|rest| {
        let (name, rest) = rest.split_once("`](")?;
        let (link, _) = rest.split_once(')')?;
        Some((name, link))
    });
    links
        .filter(|(name, link)| link.ends_with(".rs") && is_identifier(name))
        .collect()
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The path of a relative link from a directory.
fn resolve(directory: &str, link: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|p| !p.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a function of this name is a test: by its attribute, or because a macro runs it on
/// each backend.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_function = |line: &str| {
        let rest = line.split_once("fn ").map_or("", |(_, rest)| rest);
        let rest = rest.strip_prefix(name).unwrap_or_default();
        rest.starts_with(['(', '<'])
    };
    let Some(at) = lines.iter().position(|line| is_function(line)) else {
        return false;
    };
    let above = lines[..at].iter().rev();
    let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let is_attribute =
        |line: &&str| line.starts_with("#[test") || line.starts_with("#[tokio::test");
    let listed = || {
        let list = text.split("on_each_backend!(").nth(1);
        let list = list.and_then(|rest| rest.split(')').next());
        list.is_some_and(|list| list.split(',').any(|item| item.trim() == name))
    };
    above.any(is_attribute) || listed()
}
