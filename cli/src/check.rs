//! `assent check`: is everything in place.

use assent_k8s::check::{self, Area, Finding, Verdict};
use serde::Serialize;

use crate::{
    client::{self, Client, ServerArgs},
    exit::Exit,
    out::{self, OutputArgs, clean},
    report::Replica,
};

/// Checks an installation in a cluster, and says what to do.
///
/// Checks the version of Kubernetes, the definitions, the permissions of the control plane, its pods
/// and leader, certificates, webhooks and whether the API server reaches them, PolicyServers, policies,
/// and whether every evaluator is connected and serves the current version. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent check
  assent check --context production -o json

Exit codes: 0 = no problem was found, 1 = there are problems, 2 = something could not be checked.";

/// The report, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    findings: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    area: &'static str,
    result: &'static str,
    finding: &'a str,
    remedy: &'a str,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self { output, server } = self;
        let findings = client::block_on(async {
            let Some(remote) = server.cluster().await? else {
                anyhow::bail!(
                    "`assent check` checks an installation in a cluster; select one with --context or --kubeconfig"
                );
            };
            let mut findings = check::run(remote.client(), remote.namespace()).await?;
            match server.connect().await {
                Ok(client) => findings.extend(discovery(&client).await),
                Err(error) => findings.push(Finding::new(
                    Area::Discovery,
                    Verdict::Unknown,
                    format!("the leader cannot be asked what evaluators serve: {error:#}"),
                    "the message has the remedy; the other checks show whether the control plane runs",
                )),
            }
            Ok(findings)
        })?;
        let exit = exit(&findings);
        if output.is_json() {
            let findings = findings.iter().map(Row::from).collect();
            let ok = exit == Exit::Yes;
            out::json(&Report { ok, findings })?;
        } else {
            out::print(text(&findings))?;
        }
        Ok(exit)
    }
}

/// Whether every evaluator serves everything.
async fn discovery(client: &Client) -> Vec<Finding> {
    let failed = |error: anyhow::Error| {
        let remedy = "check the leader's log";
        vec![Finding::new(
            Area::Discovery,
            Verdict::Problem,
            format!("{error:#}"),
            remedy,
        )]
    };
    let servers = match client.servers().await {
        Ok(servers) => servers,
        Err(error) => return failed(error),
    };
    let mut findings = Vec::new();
    for server in servers {
        match client.everything(&server, "", Vec::new()).await {
            Ok(answer) => {
                let replicas: Vec<Replica> = answer.replicas.iter().map(Replica::from).collect();
                findings.extend(replicas_of(&server, &replicas));
            }
            Err(error) => findings.extend(failed(error)),
        }
    }
    findings
}

/// What the evaluators of a PolicyServer serve.
fn replicas_of(server: &str, replicas: &[Replica]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let others = replicas.iter().filter(|replica| replica.state != "Current");
    for replica in others {
        let first = replica.rejected.first();
        let why = first.map(|rejection| format!(": {}", rejection.message));
        let text = format!(
            "the evaluator {} of {server} is {}{}",
            replica.name,
            replica.state,
            why.unwrap_or_default()
        );
        let remedy = format!("assent replicas --policy-server {server}");
        findings.push(Finding::new(
            Area::Discovery,
            Verdict::Problem,
            text,
            remedy,
        ));
    }
    if findings.is_empty() {
        let count = replicas.len();
        let text = format!("{count} evaluators of {server} serve the current version");
        findings.push(Finding::good(Area::Discovery, text));
    }
    let own = env!("CARGO_PKG_VERSION");
    let mut versions: Vec<&str> = replicas
        .iter()
        .map(|r| r.evaluator_version.as_str())
        .collect();
    versions.sort_unstable();
    versions.dedup();
    versions.retain(|version| !version.is_empty() && *version != own);
    if !versions.is_empty() {
        let text = format!(
            "evaluators of {server} have the version {}; this program is {own}",
            versions.join(", ")
        );
        let remedy = "upgrade what is older: the chart, or this program";
        findings.push(Finding::new(
            Area::Discovery,
            Verdict::Warning,
            text,
            remedy,
        ));
    }
    findings
}

fn exit(findings: &[Finding]) -> Exit {
    let has = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    match (has(Verdict::Problem), has(Verdict::Unknown)) {
        (true, _) => Exit::No,
        (false, true) => Exit::Unknown,
        (false, false) => Exit::Yes,
    }
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (result, area) = (finding.verdict.as_str(), finding.area.as_str());
        text.push_str(&format!("{result:<9}{area:<15}{}\n", clean(&finding.text)));
        if !finding.remedy.is_empty() {
            text.push_str(&format!("{:24}→ {}\n", "", clean(&finding.remedy)));
        }
    }
    text
}

// === impl Row ===

impl<'a> From<&'a Finding> for Row<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            area: finding.area.as_str(),
            result: finding.verdict.as_str(),
            finding: &finding.text,
            remedy: &finding.remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(verdict: Verdict) -> Finding {
        Finding::new(Area::Servers, verdict, "text\u{1b}[2J", "do")
    }

    #[test]
    fn problems_come_before_what_is_unknown() {
        use Verdict::{Good, Problem, Unknown, Warning};
        let of = |all: &[Verdict]| exit(&all.iter().map(|v| mk(*v)).collect::<Vec<_>>());
        assert_eq!(of(&[Good, Warning]), Exit::Yes);
        assert_eq!(of(&[Good, Unknown]), Exit::Unknown);
        assert_eq!(of(&[Unknown, Problem]), Exit::No);
    }

    #[test]
    fn report_cannot_control_the_terminal() {
        let text = text(&[mk(Verdict::Problem)]);
        assert_eq!(
            text,
            "problem  servers        text [2J\n                        → do\n"
        );
    }
}
