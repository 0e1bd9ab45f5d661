#![allow(clippy::unwrap_used)]
use assent_proto::envoy::r#type::matcher::v3::{RegexMatcher, StructMatcher};
use tonic::Code;

use super::*;

fn node(pattern: MatchPattern, ignore_case: bool) -> NodeMatcher {
    NodeMatcher {
        node_id: Some(StringMatcher {
            match_pattern: Some(pattern),
            ignore_case,
        }),
        ..NodeMatcher::default()
    }
}

fn names(matchers: Vec<NodeMatcher>) -> Vec<&'static str> {
    let matcher = Matcher::try_from(matchers).unwrap();
    let all = ["policy-server-default-0", "policy-server-default-1", "web"];
    all.into_iter()
        .filter(|name| matcher.matches(name))
        .collect()
}

#[test]
fn matchers_select_replicas_by_name() {
    assert_eq!(names(Vec::new()).len(), 3);
    let cases = [
        (MatchPattern::Exact("web".into()), vec!["web"]),
        (
            MatchPattern::Prefix("policy-server-".into()),
            vec!["policy-server-default-0", "policy-server-default-1"],
        ),
        (
            MatchPattern::Suffix("-1".into()),
            vec!["policy-server-default-1"],
        ),
        (MatchPattern::Contains("eb".into()), vec!["web"]),
        (MatchPattern::Exact("WEB".into()), vec![]),
    ];
    for (pattern, expected) in cases {
        assert_eq!(
            names(vec![node(pattern.clone(), false)]),
            expected,
            "{pattern:?}"
        );
    }
    assert_eq!(
        names(vec![node(MatchPattern::Exact("WEB".into()), true)]),
        ["web"]
    );
    let either = vec![
        node(MatchPattern::Exact("web".into()), false),
        node(MatchPattern::Suffix("-0".into()), false),
    ];
    assert_eq!(names(either), ["policy-server-default-0", "web"]);
}

#[test]
fn unsupported_matchers_are_refused_and_match_nothing() {
    let metadata = NodeMatcher {
        node_metadatas: vec![StructMatcher {}],
        ..node(MatchPattern::Exact("web".into()), false)
    };
    let regex = RegexMatcher { regex: ".*".into() };
    let refused = [
        NodeMatcher::default(),
        metadata,
        node(MatchPattern::SafeRegex(regex), false),
        node(MatchPattern::Prefix(String::new()), false),
    ];
    for matcher in refused {
        let status = Matcher::try_from(vec![matcher.clone()]).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{matcher:?}");
    }
}
