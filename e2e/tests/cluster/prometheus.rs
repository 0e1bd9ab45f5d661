//! A Prometheus as people run it: it scrapes the pods of both sides, and judges by the chart's
//! rules.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use assent_e2e::{
    PATIENCE,
    kube::{Cluster, api},
    process::text,
    tools::tool,
};
use serde_json::{Value, json};

use crate::installation::{EVALUATORS, Installation, PLANES, ROOT, SHOP, SYSTEM, items, name};

/// In the first node, whose ports are nobody else's.
const ADDRESS: &str = "127.0.0.1:9090";

/// Every pod is scraped, their metrics agree, and no alert fires.
pub(crate) async fn scrapes_both_sides(site: &Installation) {
    let own = [site.pods(PLANES).await, site.pods(EVALUATORS).await];
    let [planes, evaluators] = own.each_ref().map(Vec::len);
    // Beside those of the PolicyServer there is the one of a user's pod.
    let evaluators = evaluators + 1;
    let shop = api::get(&site.client, &format!("/api/v1/namespaces/{SHOP}/pods")).await;
    let targets = targets(&[&own.concat(), items(&shop)].concat());
    assert_eq!(targets.len(), planes + evaluators, "{targets:#?}");

    let dir = tempfile::tempdir().expect("a directory must be made");
    let config = dir.path().join("prometheus.json");
    let text = configuration(&targets).to_string();
    std::fs::write(&config, text).expect("a file must be written");
    check(&config);
    let log = dir.path().join("log");
    let flags = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", dir.path().join("data").display()),
        format!("--web.listen-address={ADDRESS}"),
    ];
    let program = path(&tool("ASSENT_PROMETHEUS"));
    let command: Vec<&str> = [program.as_str()]
        .into_iter()
        .chain(flags.iter().map(String::as_str))
        .collect();
    let _prometheus = site.cluster.start(1, &command, &log);

    let leads = "and on (instance) assent_leader == 1";
    // A standby has none.
    let versions = "assent_snapshot_version unless on (instance) assent_leader == 0";
    // A follower may be asked for what it does not have yet.
    let failed = format!(r#"assent_http_requests_total{{namespace="{SYSTEM}",code!="200"}}"#);
    let facts = [
        (r#"sum(up{job="assent"})"#.to_owned(), planes + evaluators),
        (format!("sum({failed}) or vector(0)"), 0),
        ("sum(assent_leader)".to_owned(), 1),
        ("sum(assent_connected)".to_owned(), evaluators),
        (
            format!(r#"sum(assent_replicas{{state="current"}} {leads})"#),
            evaluators,
        ),
        (
            format!(r#"sum(assent_policies{{state="enforced"}} {leads})"#),
            1,
        ),
        // Both sides name the same set.
        (format!(r#"count(count_values("version", {versions}))"#), 1),
        (
            "count(sum by (pod) (assent_evaluations_total) > 0) > bool 0".to_owned(),
            1,
        ),
        ("sum(prometheus_rule_group_rules)".to_owned(), rules()),
        (
            "sum(prometheus_rule_evaluation_failures_total)".to_owned(),
            0,
        ),
        (
            r#"sum(prometheus_rule_evaluations_total) > bool 0"#.to_owned(),
            1,
        ),
        (
            r#"count(ALERTS{alertstate="firing"}) or vector(0)"#.to_owned(),
            0,
        ),
    ];
    for (query, expect) in facts {
        wait(site.cluster, &query, &expect.to_string()).await;
    }
}

/// Waits until a query has this value.
async fn wait(cluster: &Cluster, query: &str, expect: &str) {
    let start = Instant::now();
    loop {
        let found = ask(cluster, query);
        if found == expect {
            return;
        }
        let patient = start.elapsed() < PATIENCE;
        assert!(patient, "{query} is {found}, and not {expect}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn configuration(targets: &[Value]) -> Value {
    let rules = format!("{ROOT}/charts/assent/files/rules.yaml");
    json!({
        "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
        "rule_files": [rules],
        "scrape_configs": [
            {"job_name": "assent", "static_configs": targets},
            {"job_name": "prometheus", "static_configs": [{"targets": [ADDRESS]}]},
        ],
    })
}

/// Where pods have metrics: by the names of their ports, as any discovery finds them.
fn targets(pods: &[Value]) -> Vec<Value> {
    let of = |pod: &Value| {
        let spec = &pod["spec"];
        let containers = ["containers", "initContainers"];
        let containers = containers.iter().filter_map(|list| spec[*list].as_array());
        let ports = containers.flatten().filter_map(|c| c["ports"].as_array());
        let mut ports = ports.flatten();
        let port = ports.find(|port| port["name"] == "http" || port["name"] == "admin")?;
        let ip = pod["status"]["podIP"].as_str()?;
        let labels = json!({"namespace": pod["metadata"]["namespace"], "pod": name(pod)});
        let target = format!("{ip}:{}", port["containerPort"]);
        Some(json!({"targets": [target], "labels": labels}))
    };
    pods.iter().filter_map(of).collect()
}

/// `promtool check config`, which reads the rules too.
fn check(config: &Path) {
    let mut promtool = Command::new(tool("ASSENT_PROMTOOL"));
    let output = promtool.args(["check", "config"]).arg(config).output();
    let output = output.expect("promtool must start");
    assert!(output.status.success(), "{}", text(&output));
}

/// The value of a query that has one; otherwise the output of promtool.
fn ask(cluster: &Cluster, query: &str) -> String {
    let promtool = path(&tool("ASSENT_PROMTOOL"));
    let url = format!("http://{ADDRESS}");
    let query = ["query", "instant", "--format=json", &url, query];
    let answer = cluster.try_node(1, &[&[promtool.as_str()], &query[..]].concat());
    let answer = answer.unwrap_or_else(|e| e);
    let parsed: Value = serde_json::from_str(&answer).unwrap_or_default();
    let value = parsed.pointer("/0/value/1").and_then(Value::as_str);
    value.map_or(answer, str::to_owned)
}

/// Alerts of the chart.
fn rules() -> usize {
    let rules = std::fs::read_to_string(format!("{ROOT}/charts/assent/files/rules.yaml"));
    let rules = rules.expect("the chart must have rules");
    rules
        .lines()
        .filter(|line| line.contains("- alert:"))
        .count()
}

fn path(tool: &Path) -> String {
    tool.to_str().expect("paths must be Unicode").to_owned()
}
