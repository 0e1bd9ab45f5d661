//! Folding in memory: what an answer costs, and how soon status is known after the last.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_core::{
    Millis, Route, RouteState, Snapshot,
    fleet::{CountedReplicas, Fleet, Node},
    session::{AppliedSnapshot, Report},
};
use clap::Args as ClapArgs;

use crate::{
    report::{Report as Table, Runs, Unit, us},
    server::mk_policy,
};

/// How large.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Replicas
    #[arg(long, default_value_t = 10_000)]
    replicas: usize,
    /// Policies
    #[arg(long, default_value_t = 1_000)]
    policies: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the JSON goes
    #[arg(long, default_value = "bench-fold.json")]
    json: PathBuf,
}

/// Lets every replica acknowledge a change and folds every policy.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args {
        replicas,
        policies,
        runs: count,
        json,
    } = args;
    let parameters = format!("{replicas} replicas x {policies} policies, {count} runs");
    let mut table = Table::new("fold", parameters);
    let mut runs = Runs::default();
    for _ in 0..*count {
        runs.begin();
        fold(*replicas, *policies, &mut runs)?;
    }
    table.runs(runs);
    table.finish(json)
}

/// One run of it.
pub(crate) fn fold(replicas: usize, policies: usize, runs: &mut Runs) -> anyhow::Result<()> {
    let policies: Vec<_> = (0..policies).map(|n| mk_policy(n, 1)).collect();
    let routes = policies
        .iter()
        .map(|p| Arc::new(Route::of(&p.revision, RouteState::Active)));
    let routes: Vec<_> = routes.collect();
    let old = Arc::new(Snapshot::empty());
    let new = Arc::new(Snapshot::new(policies.iter().cloned(), routes));
    let mut fleet = Fleet::new(CountedReplicas::All, Duration::from_secs(60));
    for n in 0..replicas {
        let node = Node {
            id: format!("replica-{n}"),
            ..Node::default()
        };
        fleet.opened(Millis(1), node, String::new(), 1 + n as u64);
        fleet.reported(
            Millis(1),
            &format!("replica-{n}"),
            1 + n as u64,
            report_of(&old),
        );
    }
    let start = Instant::now();
    for n in 0..replicas {
        fleet.reported(
            Millis(2),
            &format!("replica-{n}"),
            1 + n as u64,
            report_of(&new),
        );
    }
    let per_ack = start.elapsed() / u32::try_from(replicas.max(1))?;
    let start = Instant::now();
    let complete = policies
        .iter()
        .filter(|p| fleet.fold(&p.revision).complete)
        .count();
    let folded = start.elapsed();
    anyhow::ensure!(
        complete == policies.len(),
        "every policy must be applied everywhere"
    );
    runs.row(
        format!("B9 {replicas} x {}: fold in memory", policies.len()),
        [
            ("per acknowledgement", Unit::Microseconds, us(per_ack)),
            ("last ACK to all folded", Unit::Microseconds, us(folded)),
        ],
    );
    Ok(())
}

fn report_of(snapshot: &Arc<Snapshot>) -> Report {
    Report {
        applied: Some(AppliedSnapshot {
            snapshot: snapshot.clone(),
            rejected: Vec::new(),
        }),
        sent: Some(snapshot.version()),
        acked: Some(snapshot.version()),
        ..Report::default()
    }
}
