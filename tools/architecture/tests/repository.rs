//! The checks, over this repository.

use std::collections::BTreeSet;

use assent_architecture::{
    File,
    citations::{self, Numbered},
    document::Document,
    manifests, named_tests,
    repository::Repository,
    sources,
};

#[track_caller]
fn expect_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn files() -> (BTreeSet<String>, Vec<File>) {
    let repository = Repository::own();
    let paths = repository.paths().expect("the repository must be readable");
    let texts = repository.texts(&paths);
    (paths, texts)
}

fn read(path: &str) -> String {
    let text = Repository::own().read(path);
    text.unwrap_or_else(|error| panic!("failed to read {path}: {error}"))
}

#[test]
fn manifests_match_architecture() {
    let document = Document::parse(&read("ARCHITECTURE.md")).expect("the tables must be there");
    let metadata = Repository::own()
        .metadata()
        .expect("cargo must know the workspace");
    let packages = manifests::read(&metadata).expect("the metadata must be complete");
    assert!(packages.len() > 10, "found {} crates only", packages.len());
    expect_none(&manifests::check(&document, &packages));
}

#[test]
fn code_map_names_existing_paths() {
    let document = Document::parse(&read("ARCHITECTURE.md")).expect("the tables must be there");
    let (paths, _) = files();
    let missing = document.map.iter().filter(|path| {
        let below = format!("{path}/");
        !paths.contains(*path) && !paths.iter().any(|p| p.starts_with(&below))
    });
    let wrong: Vec<String> = missing.map(|path| format!("{path} is not here")).collect();
    expect_none(&wrong);
}

#[test]
fn data_flow_names_existing_modules() {
    let document = Document::parse(&read("ARCHITECTURE.md")).expect("the tables must be there");
    let metadata = Repository::own()
        .metadata()
        .expect("cargo must know the workspace");
    let packages = manifests::read(&metadata).expect("the metadata must be complete");
    let (paths, _) = files();
    let exists = |name: &&String| {
        let (package, module) = name.split_once("::").unwrap_or((name, ""));
        let package = packages.iter().find(|p| p.name == package);
        let file = package.map(|p| format!("{}/src/{}.rs", p.directory, module.replace("::", "/")));
        file.is_some_and(|file| paths.contains(&file))
    };
    let missing = document.modules.iter().filter(|name| !exists(name));
    let wrong: Vec<String> = missing.map(|name| format!("{name} is not here")).collect();
    expect_none(&wrong);
}

#[test]
fn sources_name_only_what_they_may() {
    let (_, files) = files();
    let exceptions = read("tools/architecture/exceptions.txt");
    expect_none(&sources::check(&files, &exceptions));
}

#[test]
fn citations_resolve() {
    let (paths, files) = files();
    let mut numbered = Numbered::default();
    numbered.define(&read("docs/protocol.md"));
    numbered.define(&read("docs/design/invariants.md"));
    assert!(numbered.len() >= 43 + 12 + 27, "{numbered:?}");
    expect_none(&citations::check(&files, &paths, &numbered));
}

#[test]
fn tests_named_in_the_threat_model_exist() {
    let (_, files) = files();
    let document = "docs/security.md";
    let named = read(document);
    let named = named_tests::named(&named);
    assert!(
        named.len() >= 30,
        "{document} names {} tests only",
        named.len()
    );
    expect_none(&named_tests::check(&files, document));
}
