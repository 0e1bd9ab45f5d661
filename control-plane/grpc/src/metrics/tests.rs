#![allow(clippy::unwrap_used)]
use super::*;

fn exposition(metrics: &Metrics) -> String {
    let mut registry = Registry::default();
    metrics.register(registry.sub_registry_with_prefix("assent"));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line} is not in\n{text}");
    }
}

#[test]
fn series_have_their_documented_names() {
    let metrics = Metrics::default();
    let server = metrics.server("default");
    server.opened();
    metrics.count("default", &server, Event::Ack);
    metrics.count("default", &server, Event::Nack(Stage::Compile));
    metrics.count("default", &server, Event::StaleNonce);
    metrics.count("default", &server, Event::UnknownNonce);
    metrics.pushed(Push::NoChange, 7);
    metrics.refused(tonic::Code::NotFound);
    metrics.refused_call(tonic::Code::Unauthenticated);
    metrics.refused_first(BadFirst::NoNode);
    metrics.unserved(Unserved::NotHttp2);
    metrics.cut();
    metrics.throttled();
    assert_lines(
        &exposition(&metrics),
        &[
            r#"assent_discovery_streams{policy_server="default"} 1"#,
            r#"assent_discovery_acks_total{policy_server="default",result="ack"} 1"#,
            r#"assent_discovery_acks_total{policy_server="default",result="nack"} 1"#,
            r#"assent_discovery_nacks_total{policy_server="default",stage="compile"} 1"#,
            "assent_discovery_stale_nonces_total 1",
            "assent_discovery_protocol_errors_total 1",
            r#"assent_discovery_pushes_total{kind="no_change"} 1"#,
            "assent_discovery_push_bytes_total 7",
            r#"assent_discovery_refused_streams_total{code="NotFound"} 1"#,
            r#"assent_discovery_refused_calls_total{code="Unauthenticated"} 1"#,
            r#"assent_discovery_first_message_errors_total{reason="no_node"} 1"#,
            r#"assent_discovery_refused_connections_total{reason="not_http2"} 1"#,
            "assent_discovery_cut_messages_total 1",
            "assent_discovery_throttled_total 1",
        ],
    );
}

#[test]
fn series_of_a_removed_server_go_and_stay_away() {
    let metrics = Metrics::default();
    let old = metrics.server("gone");
    old.opened();
    metrics.count("gone", &old, Event::Nack(Stage::Fetch));
    metrics.remove_server("gone");
    old.closed();
    assert!(!exposition(&metrics).contains("gone"));

    // A server of the same name starts from zero, whatever late streams of the old one do.
    let new = metrics.server("gone");
    old.closed();
    new.opened();
    assert_lines(
        &exposition(&metrics),
        &[r#"assent_discovery_streams{policy_server="gone"} 1"#],
    );
}
