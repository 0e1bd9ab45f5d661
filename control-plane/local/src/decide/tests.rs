#![allow(clippy::unwrap_used)]

mod history;

use std::collections::BTreeSet;

use assent_api::{API_VERSION, yaml};
use assent_core::Digest;
use serde_json::json;

use super::*;
use crate::directory::Error;

fn parse_options() -> parse::Options {
    parse::Options {
        standalone: true,
        ..parse::Options::default()
    }
}

/// A document as the directory gives it.
fn mk_doc(file: &str, number: usize, value: serde_json::Value) -> Document {
    Document {
        file: file.into(),
        number,
        line: number,
        object: parse::identify(&value, &parse_options()),
        result: parse::manifest(&value, &parse_options()).map_err(Error::from),
        module: None,
    }
}

fn policy_with(file: &str, name: &str, module: &str) -> Document {
    let value = json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"module": module, "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
    });
    mk_doc(file, 1, value)
}

fn policy(file: &str, name: &str) -> Document {
    policy_with(file, name, "example.com/p:v1")
}

fn server(file: &str, name: &str) -> Document {
    mk_doc(
        file,
        1,
        json!({"apiVersion": API_VERSION, "kind": "PolicyServer", "metadata": {"name": name}}),
    )
}

fn invalid_policy(file: &str, name: &str) -> Document {
    mk_doc(
        file,
        1,
        json!({"apiVersion": API_VERSION, "kind": "ClusterAdmissionPolicy", "metadata": {"name": name}, "spec": {}}),
    )
}

fn garbage(file: &str) -> Document {
    let error = yaml::load("a: [").remove(0).value.unwrap_err();
    Document {
        file: file.into(),
        number: 1,
        line: 1,
        object: None,
        result: Err(error.into()),
        module: None,
    }
}

fn scan(documents: Vec<Document>) -> Scan {
    Scan {
        documents,
        ..Scan::default()
    }
}

fn many(names: impl IntoIterator<Item = usize>) -> Vec<Document> {
    let names = names.into_iter();
    names
        .map(|i| policy(&format!("{i:03}.yaml"), &format!("p{i}")))
        .collect()
}

fn key(name: &str) -> Object {
    Object::Policy(PolicyKey::cluster(name))
}

fn after(documents: Vec<Document>) -> Objects {
    let decision = decide(&Objects::new(), &scan(documents), Options::default());
    assert!(decision.synced && decision.removed.is_empty());
    decision.objects
}

fn run(previous: &Objects, documents: Vec<Document>) -> Decision {
    decide(previous, &scan(documents), Options::default())
}

/// Asserts what changed, and that nothing else did.
#[track_caller]
fn check(decision: &Decision, changed: &[&str], removed: &[&str], problems: &[Reason]) {
    let names = |list: &[&str]| list.iter().map(|name| key(name)).collect::<Vec<_>>();
    assert_eq!(decision.changed, names(changed), "changed");
    assert_eq!(decision.removed, names(removed), "removed");
    let reasons: Vec<_> = decision.problems.iter().map(|p| p.reason).collect();
    assert_eq!(reasons, problems, "{:#?}", decision.problems);
}

#[test]
fn a_missing_directory_is_not_an_empty_one() {
    for state in [State::Missing, State::Unreadable("denied".into())] {
        let away = Scan {
            state,
            ..Scan::default()
        };
        let at_start = decide(&Objects::new(), &away, Options::default());
        assert!(!at_start.synced);
        check(&at_start, &[], &[], &[Reason::Unreadable]);

        let before = after(many(0..3));
        // Not even when mass removal is allowed: nothing is known.
        let later = decide(
            &before,
            &away,
            Options {
                allow_mass_removal: true,
            },
        );
        assert_eq!(later.objects, before);
        check(&later, &[], &[], &[Reason::Unreadable]);
        assert!(
            later.problems[0]
                .message
                .contains("nothing is removed, 3 objects stay"),
            "{later:?}"
        );
    }
}

#[test]
fn adds_changes_and_removes() {
    let first = run(
        &Objects::new(),
        vec![policy("a.yaml", "a"), policy("b.yaml", "b")],
    );
    check(&first, &["a", "b"], &[], &[]);
    let again = run(
        &first.objects,
        vec![policy("a.yaml", "a"), policy("b.yaml", "b")],
    );
    check(&again, &[], &[], &[]);
    assert_eq!(again.objects, first.objects);
    let changed = run(
        &first.objects,
        vec![policy_with("a.yaml", "a", "example.com/p:v2")],
    );
    check(&changed, &["a"], &["b"], &[]);
    assert_eq!(changed.objects.len(), 1);
}

#[test]
fn a_policy_may_move_to_another_file() {
    let before = after(vec![policy("a.yaml", "a"), policy("b.yaml", "b")]);
    let moved = run(&before, vec![policy("b.yaml", "b"), policy("z.yaml", "a")]);
    check(&moved, &["a"], &[], &[]);
    assert_eq!(moved.objects[&key("a")].file, "z.yaml");
}

#[test]
fn bad_yaml_keeps_what_came_from_its_file() {
    let before = after(vec![policy("a.yaml", "a"), policy("b.yaml", "b")]);
    let broken = run(&before, vec![garbage("a.yaml"), policy("b.yaml", "b")]);
    check(&broken, &[], &[], &[Reason::Invalid, Reason::Invalid]);
    assert_eq!(broken.objects, before);
    // Said for the file, and at the object that it concerns.
    assert_eq!(broken.problems[0].object, None);
    assert_eq!(broken.problems[1].object, Some(key("a")));
    assert!(
        broken.problems[1].message.starts_with("a.yaml: line "),
        "{broken:?}"
    );
    // A file that never was good has nothing to keep.
    let fresh = run(
        &before,
        vec![
            policy("a.yaml", "a"),
            policy("b.yaml", "b"),
            garbage("c.yaml"),
        ],
    );
    check(&fresh, &[], &[], &[Reason::Invalid]);
}

#[test]
fn an_invalid_policy_keeps_its_last_good_state() {
    let before = after(vec![policy("a.yaml", "a")]);
    let broken = run(
        &before,
        vec![
            invalid_policy("a.yaml", "a"),
            invalid_policy("n.yaml", "new"),
        ],
    );
    check(&broken, &[], &[], &[Reason::Invalid, Reason::Invalid]);
    assert_eq!(broken.objects, before);
    assert!(
        broken.problems[0]
            .message
            .contains("spec.module: must be given")
    );
    assert_eq!(broken.problems[1].object, Some(key("new")));
}

#[test]
fn the_server_of_a_policy_stays() {
    let on = |server: &str| {
        let value = json!({
            "apiVersion": API_VERSION, "kind": "ClusterAdmissionPolicy", "metadata": {"name": "a"},
            "spec": {"policyServer": server, "module": "x", "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
        });
        mk_doc("a.yaml", 1, value)
    };
    let before = after(vec![on("one")]);
    let moved = run(&before, vec![on("two")]);
    check(&moved, &[], &[], &[Reason::Invalid]);
    assert_eq!(moved.objects, before);
    assert!(
        moved.problems[0]
            .message
            .starts_with("a.yaml: spec.policyServer: is immutable")
    );
}

#[test]
fn the_first_of_two_manifests_stays() {
    let both = run(
        &Objects::new(),
        vec![
            policy_with("b.yaml", "a", "example.com/b:v1"),
            policy("a.yaml", "a"),
        ],
    );
    check(&both, &["a"], &[], &[Reason::Duplicate]);
    assert_eq!(both.objects[&key("a")].file, "a.yaml");
    assert_eq!(
        both.problems[0].message,
        "cluster/a is in a.yaml and in b.yaml; the first is used, remove the second or rename it"
    );
    // A file that is added can't take over what another one owns, even if its name is lower.
    let before = after(vec![policy("b.yaml", "a")]);
    let added = run(
        &before,
        vec![
            policy_with("a.yaml", "a", "example.com/evil:v1"),
            policy("b.yaml", "a"),
        ],
    );
    check(&added, &[], &[], &[Reason::Duplicate]);
    assert_eq!(added.objects, before);
    // Not while its owner is invalid, unreadable or changing either.
    let owner_bad = run(
        &before,
        vec![policy("a.yaml", "a"), invalid_policy("b.yaml", "a")],
    );
    assert_eq!(owner_bad.objects, before);
    for unreadable in [true, false] {
        let mut away = scan(vec![policy_with("a.yaml", "a", "example.com/evil:v1")]);
        if unreadable {
            away.unreadable.insert("b.yaml".into(), "denied".into());
        } else {
            away.unsettled.insert("b.yaml".into());
        }
        assert_eq!(decide(&before, &away, Options::default()).objects, before);
    }
    // Within one file the first document counts.
    let mut second = policy_with("a.yaml", "a", "example.com/b:v1");
    (second.number, second.line) = (2, 9);
    let twice = run(&Objects::new(), vec![second, policy("a.yaml", "a")]);
    assert!(
        twice.problems[0]
            .message
            .contains("in a.yaml and in a.yaml, document 2 (line 9)")
    );
}

#[test]
fn unsettled_and_unreadable_files_remove_nothing() {
    let before = after(vec![policy("a.yaml", "a"), policy("b.yaml", "b")]);
    let mut changing = scan(vec![policy("b.yaml", "b")]);
    changing.unsettled = BTreeSet::from(["a.yaml".to_owned()]);
    let decision = decide(&before, &changing, Options::default());
    check(&decision, &[], &[], &[]);
    assert_eq!(decision.objects, before);
    let mut denied = scan(vec![policy("b.yaml", "b")]);
    denied
        .unreadable
        .insert("a.yaml".into(), "permission denied".into());
    let decision = decide(&before, &denied, Options::default());
    check(&decision, &[], &[], &[Reason::Unreadable, Reason::Invalid]);
    assert_eq!(decision.objects, before);
}

#[test]
fn a_file_that_was_cut_off_removes_nothing() {
    let before = after(vec![
        policy("a.yaml", "a"),
        policy("a.yaml", "b"),
        policy("c.yaml", "c"),
    ]);
    // The cut left a document with half a name, and none of what followed.
    let mut cut = policy("a.yaml", "half");
    cut.result = Err(Error::Json("cut off".into()));
    let decision = decide(
        &before,
        &scan(vec![cut, policy("c.yaml", "c")]),
        Options::default(),
    );
    assert_eq!(decision.removed, []);
    assert_eq!(decision.objects, before);
}

#[test]
fn mass_removal_is_held_back() {
    for (had, left, held) in [
        // Half of ten is not more than half.
        (10, 5, false),
        (10, 4, true),
        (20, 9, true),
        // Fewer than ten: somebody is working by hand.
        (9, 1, false),
        (9, 0, true),
        (2, 0, true),
        (2, 1, false),
        // One policy's file deleted is a delete, also of the only one.
        (1, 0, false),
        (100, 99, false),
    ] {
        let before = after(many(0..had));
        let decision = run(&before, many(0..left));
        assert_eq!(decision.held.is_some(), held, "{had} -> {left}");
        if held {
            assert_eq!(decision.objects.len(), before.len());
            assert!(decision.removed.is_empty());
            let text = decision.held.unwrap().to_string();
            assert!(
                text.starts_with(&format!("{} of {had} policies are gone", had - left)),
                "{text}"
            );
        } else {
            assert_eq!(decision.removed.len(), had - left);
            assert_eq!(decision.objects.len(), left);
        }
        let allowed = decide(
            &before,
            &scan(many(0..left)),
            Options {
                allow_mass_removal: true,
            },
        );
        assert_eq!((allowed.held, allowed.removed.len()), (None, had - left));
    }
}

/// What is held stays held over any number of scans, and is over when the files are back.
#[test]
fn holding_back_lasts_until_it_is_resolved() {
    let before = after(many(0..12));
    let held = run(&before, many(0..2));
    let again = run(&held.objects, many(0..2));
    assert_eq!(
        (again.held.map(|h| h.policies.len()), again.objects.len()),
        (Some(10), 12)
    );
    // A change of what is left goes through meanwhile.
    let edited = run(
        &held.objects,
        vec![
            policy_with("000.yaml", "p0", "example.com/p:v2"),
            policy("001.yaml", "p1"),
        ],
    );
    assert_eq!((edited.changed.len(), edited.held.is_some()), (1, true));
    let back = run(&held.objects, many(0..12));
    check(&back, &[], &[], &[]);
    assert_eq!(back.held, None);
}

/// Six of ten are gone while two are new: six of twelve are not more than half, and yet what
/// was held must not be removed by the next look.
#[test]
fn new_policies_do_not_release_what_is_held() {
    let before = after(many(0..10));
    let held = run(&before, many((0..4).chain(20..22)));
    assert_eq!(held.held.as_ref().map(|h| h.policies.len()), Some(6));
    let again = run(&held.objects, many((0..4).chain(20..22)));
    assert_eq!(again.held.map(|h| h.policies.len()), Some(6));
    assert_eq!((again.removed.len(), again.objects.len()), (0, 12));
    // An emptied directory stays held when something is put there.
    let emptied = run(&after(many(0..3)), Vec::new());
    let refilled = run(&emptied.objects, many(20..21));
    assert_eq!((refilled.removed.len(), refilled.objects.len()), (0, 4));
    let allowed = Options {
        allow_mass_removal: true,
    };
    let released = decide(&refilled.objects, &scan(many(20..21)), allowed);
    assert_eq!((released.removed.len(), released.objects.len()), (3, 1));
}

#[test]
fn servers_stand_beside_policies() {
    let first = run(
        &Objects::new(),
        vec![policy("a.yaml", "a"), server("s.yaml", "tenants")],
    );
    assert_eq!(first.changed.len(), 2);
    let gone = run(&first.objects, vec![policy("a.yaml", "a")]);
    assert_eq!(gone.removed, [Object::Server("tenants".into())]);
}

#[test]
fn modules_are_part_of_what_is_watched() {
    let with_module = |digest: Result<Digest, String>| {
        let mut document = policy_with("a.yaml", "a", "file://p.wasm");
        document.module = Some(ModuleFile {
            path: "p.wasm".into(),
            digest,
        });
        document
    };
    let before = after(vec![with_module(Ok(Digest::of(b"1")))]);
    check(
        &run(&before, vec![with_module(Ok(Digest::of(b"1")))]),
        &[],
        &[],
        &[],
    );
    check(
        &run(&before, vec![with_module(Ok(Digest::of(b"2")))]),
        &["a"],
        &[],
        &[],
    );
    let missing = run(
        &before,
        vec![
            with_module(Err("failed to read module file p.wasm: gone".into())),
            policy("b.yaml", "b"),
        ],
    );
    check(&missing, &["a", "b"], &[], &[Reason::PullError]);
    assert_eq!(
        missing.problems[0].message,
        "a.yaml: failed to read module file p.wasm: gone"
    );
}
