//! Any history of the directory, good and bad.

use proptest::prelude::*;

use super::*;

/// What a file can be at one moment.
#[derive(Clone, Debug)]
enum Content {
    Absent,
    Good(Vec<u8>),
    Invalid(u8),
    Garbage,
    Unreadable,
    Unsettled,
}

fn any_content() -> impl Strategy<Value = Content> {
    prop_oneof![
        2 => Just(Content::Absent),
        4 => proptest::collection::vec(0u8..12, 1..3).prop_map(Content::Good),
        1 => (0u8..12).prop_map(Content::Invalid),
        1 => Just(Content::Garbage),
        1 => Just(Content::Unreadable),
        1 => Just(Content::Unsettled),
    ]
}

fn any_scan() -> impl Strategy<Value = (Vec<Content>, bool)> {
    (
        proptest::collection::vec(any_content(), 8),
        prop::bool::weighted(0.9),
    )
}

fn build(contents: &[Content], present: bool) -> Scan {
    let mut scan = Scan::default();
    if !present {
        scan.state = State::Missing;
        return scan;
    }
    for (i, content) in contents.iter().enumerate() {
        let file = format!("{i}.yaml");
        match content {
            Content::Absent => {}
            Content::Good(names) => {
                for (number, name) in names.iter().enumerate() {
                    let mut document = policy(&file, &format!("p{name}"));
                    document.number = number + 1;
                    scan.documents.push(document);
                }
            }
            Content::Invalid(name) => scan
                .documents
                .push(invalid_policy(&file, &format!("p{name}"))),
            Content::Garbage => scan.documents.push(garbage(&file)),
            Content::Unreadable => {
                scan.unreadable.insert(file, "denied".into());
            }
            Content::Unsettled => {
                scan.unsettled.insert(file);
            }
        }
    }
    scan
}

proptest! {
    /// Through any history: a policy whose manifest is there and good exists; one is removed only
    /// where its own file was read and does not have it; what is unchanged is not announced.
    #[test]
    fn nothing_is_lost_without_evidence(history in proptest::collection::vec(any_scan(), 1..8)) {
        let mut objects = Objects::new();
        for (contents, present) in history {
            let scan = build(&contents, present);
            let decision = decide(&objects, &scan, Options::default());
            if !present {
                prop_assert_eq!(&decision.objects, &objects);
                prop_assert!(decision.removed.is_empty() && decision.changed.is_empty());
            }
            for document in &scan.documents {
                if let (Some(object), Ok(_)) = (&document.object, &document.result) {
                    let owner = objects.get(object).map(|entry| entry.file.clone());
                    let bad_owner = scan.documents.iter().any(|d| {
                        d.object.as_ref() == Some(object) && d.result.is_err() && d.file < document.file
                    });
                    // A new object may lose to an invalid document of a lower name, no known one may.
                    prop_assert!(decision.objects.contains_key(object) || owner.is_none() && bad_owner);
                }
            }
            for object in &decision.removed {
                let file = &objects[object].file;
                prop_assert!(!decision.objects.contains_key(object));
                prop_assert!(!scan.unsettled.contains(file) && !scan.unreadable.contains_key(file));
                prop_assert!(scan.documents.iter().all(|d| d.object.as_ref() != Some(object)));
                prop_assert!(scan.documents.iter().all(|d| &d.file != file || d.object.is_some()));
            }
            for (object, entry) in &objects {
                prop_assert!(decision.removed.contains(object) || decision.objects.contains_key(object));
                if decision.objects.get(object) == Some(entry) {
                    prop_assert!(!decision.changed.contains(object));
                }
            }
            let again = decide(&decision.objects, &scan, Options::default());
            prop_assert_eq!(&again.objects, &decision.objects);
            prop_assert!(again.changed.is_empty());
            objects = decision.objects;
        }
    }
}
