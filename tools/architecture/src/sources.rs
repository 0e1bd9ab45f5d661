//! What sources may name.
//!
//! Sources are scanned as text, comments left out: a parser would take longer to build than all
//! checks take to run.

use std::collections::BTreeSet;

use crate::File;

/// One rule about names.
struct Rule {
    /// What violations and exceptions call it.
    name: &'static str,
    /// Where it holds.
    applies: fn(&str) -> bool,
    /// The first thing in the code that breaks it.
    broken_by: fn(&str) -> Option<String>,
}

const RULES: &[Rule] = &[
    Rule {
        name: "kube-client",
        applies: |path| !below(path, &["control-plane/k8s", "e2e", "tools/architecture"]),
        broken_by: kube_client,
    },
    Rule {
        name: "wasmtime",
        applies: |path| !below(path, &["evaluator/wasm", "tools/architecture"]),
        broken_by: |code| {
            first(
                code,
                &["wasmtime::", "use wasmtime", "extern crate wasmtime"],
            )
        },
    },
    Rule {
        name: "pure",
        applies: |path| {
            below(
                path,
                &[
                    "context/src",
                    "control-plane/core/src",
                    "control-plane/controller/src",
                ],
            )
        },
        broken_by: |code| {
            first(
                code,
                &[
                    "Instant::now",
                    "SystemTime::now",
                    "Timestamp::now",
                    "Zoned::now",
                    "std::env",
                    "std::fs",
                    "std::net",
                    "std::process",
                    "std::thread",
                    "kube::",
                    "rand::",
                    "tokio::",
                    "tonic::",
                ],
            )
        },
    },
];

/// What of `kube` only works with a client.
const CLIENT: &[&str] = &["Api", "Client", "Config", "Error", "client", "runtime"];

/// What in the sources is not allowed. `exceptions` has lines `RULE PATH`; one that is not
/// needed any more is a violation too, so that the list only shrinks.
pub fn check(files: &[File], exceptions: &str) -> Vec<String> {
    let excepted: BTreeSet<(&str, &str)> = exceptions
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .collect();
    let mut needed = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.has_extension("rs")) {
        let code = without_comments(&file.text);
        for rule in RULES.iter().filter(|rule| (rule.applies)(&file.path)) {
            let Some(named) = (rule.broken_by)(&code) else {
                continue;
            };
            if excepted.contains(&(rule.name, file.path.as_str())) {
                needed.insert((rule.name, file.path.as_str()));
            } else {
                wrong.push(format!("{} names {named} (rule {})", file.path, rule.name));
            }
        }
    }
    for (rule, path) in excepted.difference(&needed) {
        wrong.push(format!(
            "{path} no longer breaks the rule {rule}: remove it from exceptions.txt"
        ));
    }
    wrong
}

fn below(path: &str, directories: &[&str]) -> bool {
    directories.iter().any(|directory| {
        let rest = path.strip_prefix(directory);
        rest.is_some_and(|rest| rest.starts_with('/'))
    })
}

fn first(code: &str, names: &[&str]) -> Option<String> {
    let found = names.iter().find(|name| {
        code.match_indices(**name)
            .any(|(at, _)| !code[..at].ends_with(is_word))
    });
    found.map(|name| (*name).to_owned())
}

/// The first part of a client in a path or an import of `kube`.
fn kube_client(code: &str) -> Option<String> {
    for (at, _) in code.match_indices("kube::") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let path = &code[at + "kube::".len()..];
        let imported = code[..at].trim_end().ends_with("use");
        // An import goes on to its end, a path to the end of its words.
        let end = if imported {
            path.find(';')
        } else {
            path.find(|c: char| !is_word(c) && c != ':')
        };
        let words = path[..end.unwrap_or(path.len())].split(|c: char| !is_word(c));
        if let Some(word) = words.into_iter().find(|word| CLIENT.contains(word)) {
            return Some(format!("kube's {word}"));
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Lines that are comments are left out. A comment behind code stays: it is rare, and naming
/// something forbidden there is no better.
fn without_comments(text: &str) -> String {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.fold(String::with_capacity(text.len()), |code, line| {
        code + line + "\n"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_finds(path: &str, text: &str, exceptions: &str, expect: &[&str]) {
        assert_eq!(check(&[File::new(path, text)], exceptions), expect);
    }

    #[test]
    fn client_outside_k8s_is_found() {
        let text = "use kube::{\n    api::Patch,\n    Client,\n};\n";
        let wrong = "control-plane/src/a.rs names kube's Client (rule kube-client)";
        check_finds("control-plane/src/a.rs", text, "", &[wrong]);
        check_finds("control-plane/k8s/src/a.rs", text, "", &[]);
        let path = "fn f(c: kube::Client) {}\n";
        check_finds("control-plane/src/a.rs", path, "", &[wrong]);
    }

    #[test]
    fn types_and_comments_are_no_client() {
        let text = "// kube::Client is not used here.\nuse kube::core::DynamicObject;\n#[kube(group = \"g\")]\nstruct Client;\n";
        check_finds("control-plane/src/a.rs", text, "", &[]);
    }

    #[test]
    fn exception_is_obeyed_while_it_is_needed() {
        let exceptions = "# why\nkube-client cli/src/a.rs\n";
        check_finds("cli/src/a.rs", "use kube::Client;\n", exceptions, &[]);
        check_finds(
            "cli/src/a.rs",
            "use kube::core::DynamicObject;\n",
            exceptions,
            &["cli/src/a.rs no longer breaks the rule kube-client: remove it from exceptions.txt"],
        );
    }

    #[test]
    fn wasmtime_outside_wasm_is_found() {
        let text = "fn f(e: wasmtime::Engine) {}\n";
        check_finds(
            "evaluator/src/a.rs",
            text,
            "",
            &["evaluator/src/a.rs names wasmtime:: (rule wasmtime)"],
        );
        check_finds("evaluator/wasm/src/a.rs", text, "", &[]);
    }

    #[test]
    fn clock_in_core_is_found() {
        let text = "fn f() -> Instant { std::time::Instant::now() }\n";
        check_finds(
            "control-plane/core/src/a.rs",
            text,
            "",
            &["control-plane/core/src/a.rs names Instant::now (rule pure)"],
        );
        check_finds("control-plane/grpc/src/a.rs", text, "", &[]);
    }
}
