#![allow(clippy::unwrap_used)]
use std::time::Duration;

use assent_core::{
    Snapshot,
    fleet::{CountedReplicas, Node},
};

use super::*;

fn mk_fleet(names: &[&str]) -> Fleet {
    let mut fleet = Fleet::new(CountedReplicas::All, Duration::from_secs(60));
    for (name, stream) in names.iter().zip(1..) {
        let node = Node {
            id: (*name).to_owned(),
            ..Node::default()
        };
        fleet.opened(Millis(0), node, String::new(), stream);
    }
    fleet
}

fn names(query: &Query, fleet: &Fleet) -> (Vec<String>, Option<String>) {
    let (rows, next) = query.select(fleet, Snapshot::empty().version());
    (rows.iter().map(|row| row.name.to_string()).collect(), next)
}

#[test]
fn pages_follow_the_names_and_end() {
    let fleet = mk_fleet(&["a", "b", "c"]);
    let mut query = Query {
        limit: 2,
        ..Query::default()
    };
    let (page, next) = names(&query, &fleet);
    assert_eq!(
        (page, next.as_deref()),
        (vec!["a".into(), "b".into()], Some("b"))
    );
    assert!(query.wants_policy("cluster/x"));
    query.after = next;
    assert_eq!(names(&query, &fleet), (vec!["c".to_owned()], None));
    assert!(!query.wants_policy("cluster/x"));
}

#[test]
fn filters_leave_out_what_was_not_asked_for() {
    let mut fleet = mk_fleet(&["a", "b", "c"]);
    fleet.closed(Millis(1), "b", 2);
    let mut query = Query {
        limit: 9,
        states: vec![ReplicaState::Disconnected],
        ..Query::default()
    };
    assert_eq!(names(&query, &fleet).0, ["b"]);
    query.replica = Some("a".into());
    assert!(names(&query, &fleet).0.is_empty());
    query.policy = Some("cluster/x".into());
    assert!(query.wants_policy("cluster/x") && !query.wants_policy("cluster/y"));
}
