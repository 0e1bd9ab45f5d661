use super::*;

fn mk_files() -> Vec<File> {
    vec![
        File::new(
            "docs/rules.md",
            "# Rules\n\n## One stream\n\n| R1 | text |\n| I2 | text |\n",
        ),
        File::new(
            "README.md",
            "[rules](docs/rules.md#one-stream) [docs](docs) [web](https://a.dev/x)\n",
        ),
        File::new(
            "src/a.rs",
            "//! R1 and I2: see docs/rules.md, and `ValType::I32`.\n",
        ),
    ]
}

#[track_caller]
fn check_finds(extra: File, expect: &[&str]) {
    let mut files = mk_files();
    let mut numbered = Numbered::default();
    numbered.define(&files[0].text);
    assert_eq!(numbered.len(), 2);
    files.push(extra);
    let paths = files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(check(&files, &paths, &numbered), expect);
}

#[test]
fn citations_that_resolve_pass() {
    check_finds(File::new("src/b.rs", "// RFC 7519 section 4\n"), &[]);
}

#[test]
fn unknown_number_is_found() {
    check_finds(
        File::new("src/b.rs", "fn f() {}\n// R2: why\n"),
        &["src/b.rs:2 cites R2, which no document defines"],
    );
}

#[test]
fn address_of_this_repository_names_a_file_of_it() {
    let line = |name: &str| format!("url: https://example.com/a/blob/main/docs/{name}.md#x\n");
    check_finds(File::new("rules.yaml", &line("rules")), &[]);
    check_finds(
        File::new("rules.yaml", &line("none")),
        &["rules.yaml:1 names docs/none.md, which is not here"],
    );
}

#[test]
fn unknown_document_is_found() {
    check_finds(
        File::new("scripts/b", "# as in design/PLAN.md.\n"),
        &["scripts/b:1 names design/PLAN.md, which is not here"],
    );
}

#[test]
fn section_of_nothing_is_found() {
    check_finds(
        File::new("src/b.rs", "// as in section 5\n"),
        &["src/b.rs:1 cites a section of no document"],
    );
}

#[test]
fn broken_links_are_found() {
    check_finds(
        File::new(
            "docs/b.md",
            "[a](c.md) [b](rules.md#two) [c](../README.md) [d](#x)\n",
        ),
        &[
            "docs/b.md:1 links to c.md, which is not here",
            "docs/b.md:1 links to rules.md#two, which has no such heading",
            "docs/b.md:1 links to #x, which has no such heading",
        ],
    );
}

#[test]
fn paths_of_a_machine_are_found() {
    let (begin, end) = MACHINES[0];
    let text = format!("cd {begin}{end}me/x\n");
    check_finds(
        File::new("scripts/b", &text),
        &[&format!(
            "scripts/b:1 has a path of one machine, {begin}{end}"
        )],
    );
}
