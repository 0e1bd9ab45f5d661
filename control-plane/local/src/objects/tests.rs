#![allow(clippy::unwrap_used)]

use std::fs;

use assent_core::policy::ContextResource;
use tokio::sync::mpsc;

use super::*;

fn mk_pod(name: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: a}}\n")
}

fn names(cluster: &Cluster) -> Vec<String> {
    let pods = ContextResource {
        api_version: "v1".into(),
        kind: "Pod".into(),
        ..ContextResource::default()
    };
    let collection = cluster.collection(&pods).unwrap();
    collection.iter().map(|o| o.key().to_string()).collect()
}

#[test]
fn directory_is_read_in_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("a.yaml"), dir.path().join("c.json"));
    fs::write(&one, format!("{}---\n{}", mk_pod("a"), mk_pod("b"))).unwrap();
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c","namespace":"a"}}"#;
    let list = format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{pod}]}}"#);
    fs::write(&two, list).unwrap();
    fs::write(dir.path().join("notes.txt"), "x").unwrap();
    assert_eq!(names(&read(dir.path()).unwrap()), ["a/a", "a/b", "a/c"]);
    assert_eq!(names(&read(&one).unwrap()), ["a/a", "a/b"]);
}

#[track_caller]
fn check_error(content: &str, expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.yaml"), content).unwrap();
    let error = read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("bad.yaml"), "{error}");
    assert!(error.contains(expect), "{error}");
}

#[test]
fn bad_files_are_named() {
    check_error("kind: [", "line 1");
    check_error("", "empty");
    check_error("kind: Pod\n", "apiVersion, kind and metadata.name");
    let twice = format!("{}---\n{}", mk_pod("a"), mk_pod("a"));
    let expect = "document 2 (line 4): there is another Pod (v1) named a/a";
    check_error(&twice, expect);
    let missing = read(Path::new("/nonexistent/objects")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/objects"));
}

#[tokio::test]
async fn changes_are_sent_and_bad_files_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), mk_pod("a")).unwrap();
    let (sender, mut receiver) = mpsc::channel(1);
    tokio::spawn(watch(dir.path().to_owned(), sender));
    let first = receiver.recv().await.unwrap();
    assert_eq!(names(&first.content.unwrap()), ["a/a"]);
    let other = dir.path().join("b.yaml");
    fs::write(&other, mk_pod("b")).unwrap();
    let second = receiver.recv().await.unwrap();
    assert_eq!(names(&second.content.unwrap()), ["a/a", "a/b"]);
    fs::write(&other, "kind: [").unwrap();
    let third = receiver.recv().await.unwrap().content.unwrap_err();
    assert!(third.contains("b.yaml"), "{third}");
    fs::remove_file(&other).unwrap();
    let fourth = receiver.recv().await.unwrap();
    assert_eq!(names(&fourth.content.unwrap()), ["a/a"]);
}
