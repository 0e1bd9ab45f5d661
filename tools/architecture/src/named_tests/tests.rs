use super::*;

const CODE: &str = "\
#[test]
fn plain() {}

#[tokio::test(flavor = \"multi_thread\")]
/// With a comment.
async fn asynchronous() {}

fn helper() {}

on_each_backend!(generic, another);
fn generic<W: World>() {}
";

#[track_caller]
fn check_finds(document: &str, expect: &[&str]) {
    let files = [
        File::new("docs/security.md", document),
        File::new("a/tests/it.rs", CODE),
    ];
    assert_eq!(check(&files, "docs/security.md"), expect);
}

#[test]
fn existing_tests_are_found() {
    check_finds(
        "| [`plain`](../a/tests/it.rs), [`asynchronous`](../a/tests/it.rs) | [`generic`](../a/tests/it.rs) |",
        &[],
    );
}

#[test]
fn other_links_are_ignored() {
    check_finds("[`--flag`](install.md) and [words](../a/tests/it.rs)", &[]);
}

#[test]
fn missing_tests_and_helpers_are_reported() {
    check_finds(
        "[`gone`](../a/tests/it.rs) [`helper`](../a/tests/it.rs) [`plain`](../b.rs)",
        &[
            "docs/security.md names the test gone, which ../a/tests/it.rs does not have",
            "docs/security.md names the test helper, which ../a/tests/it.rs does not have",
            "docs/security.md names the test plain, which ../b.rs does not have",
        ],
    );
}

#[test]
fn missing_document_is_reported() {
    assert_eq!(
        check(&[], "docs/security.md"),
        ["docs/security.md is missing"]
    );
}
