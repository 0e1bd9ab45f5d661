//! Folding in memory: what an answer costs, and how soon status is known after the last.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_core::{
    Millis, Route, RouteState, Snapshot,
    fleet::{Counting, Fleet, Node},
    session::{Report, Taken},
};
use clap::Args as ClapArgs;

use crate::{
    report::{self, Report as Table},
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
    /// Where the JSON goes
    #[arg(long, default_value = "bench-fold.json")]
    json: PathBuf,
}

/// Lets every replica acknowledge a change and folds every policy.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let parameters = format!("{} replicas x {} policies", args.replicas, args.policies);
    let mut table = Table::new("fold", parameters);
    let policies: Vec<_> = (0..args.policies).map(|n| mk_policy(n, 1)).collect();
    let routes = policies
        .iter()
        .map(|p| Arc::new(Route::of(&p.revision, RouteState::Active)));
    let routes: Vec<_> = routes.collect();
    let old = Arc::new(Snapshot::empty());
    let new = Arc::new(Snapshot::new(policies.iter().cloned(), routes));
    let mut fleet = Fleet::new(Counting::Everyone, Duration::from_secs(60));
    for n in 0..args.replicas {
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
    for n in 0..args.replicas {
        fleet.reported(
            Millis(2),
            &format!("replica-{n}"),
            1 + n as u64,
            report_of(&new),
        );
    }
    let per_ack = start.elapsed() / u32::try_from(args.replicas.max(1))?;
    let start = Instant::now();
    let complete = policies
        .iter()
        .filter(|p| fleet.fold(&p.revision).complete)
        .count();
    let folded = start.elapsed();
    anyhow::ensure!(
        complete == args.policies,
        "every policy must be applied everywhere"
    );
    table.row(
        "per acknowledgement",
        vec![("time", report::micros(per_ack))],
    );
    table.row(
        "last acknowledgement to all folded",
        vec![("time", report::micros(folded))],
    );
    table.finish(&args.json)
}

fn report_of(snapshot: &Arc<Snapshot>) -> Report {
    Report {
        taken: Some(Taken {
            snapshot: snapshot.clone(),
            rejected: Vec::new(),
        }),
        sent: Some(snapshot.version()),
        acked: Some(snapshot.version()),
        ..Report::default()
    }
}
