//! Faults at random beside edits, rollbacks, scaling and load; everything is recorded, and the
//! record is checked against the invariants of docs/design/invariants.md.
//!
//! `ASSENT_SOAK_MINUTES` is the duration, `ASSENT_SOAK_SEED` repeats the choices of an earlier
//! run: the same faults and edits in the same order, though not at the same microsecond.

use std::{
    env,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::FutureExt as _;

use crate::installation::{Installation, POLICY, SYSTEM, timed, values};

use history::History;
use people::SECOND;

mod check;
mod disturb;
mod history;
mod load;
mod people;
mod rng;

/// What continuous integration has time for.
const MINUTES: u64 = 2;

/// What the tasks of a run share.
#[derive(Clone)]
struct Soak {
    site: Arc<Installation>,
    history: History,
    ends: Arc<AtomicBool>,
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_keeps_the_invariants_under_random_faults() {
    let _turn = crate::turn().await;
    let site = Installation::prepare().await;
    let soak = Soak {
        site: Arc::new(site),
        history: History::start(),
        ends: Arc::default(),
    };
    let outcome = AssertUnwindSafe(soak.run()).catch_unwind().await;
    if let Err(panic) = outcome {
        soak.site.dump().await;
        eprintln!("--- history\n{}", soak.history.text());
        resume_unwind(panic);
    }
    remove(&soak.site).await;
}

// === impl Soak ===

impl Soak {
    async fn run(&self) {
        let minutes = number("ASSENT_SOAK_MINUTES").unwrap_or(MINUTES);
        let seed = number("ASSENT_SOAK_SEED").unwrap_or_else(from_clock);
        eprintln!("repeat: ASSENT_SOAK_SEED={seed} just soak {minutes}");
        let site = &self.site;
        let install = async {
            site.helm(&["install", "--create-namespace"], &values("Never"));
            site.whole(3).await;
            site.protect().await;
        };
        timed("the policy is enforced", install).await;

        let recorders = self.record().await;
        let load = self.load();
        let end = Instant::now() + Duration::from_secs(60 * minutes);
        let (people, faults) = (self.people(seed, end), self.disturb(seed, end));
        tokio::join!(people, faults);

        let begun = Instant::now();
        self.recover().await;
        let took = begun.elapsed();
        self.ends.store(true, Ordering::Relaxed);
        for task in load.into_iter().chain(recorders) {
            task.await.expect("a recorder must not fail");
        }
        eprintln!(
            "{} in {minutes} minutes; recovered in {:.1} s",
            self.history.summary(),
            took.as_secs_f32()
        );
        self.check().await;
    }

    /// I7: faults are over; everything converges within a bound.
    async fn recover(&self) {
        self.site.scale(3).await;
        self.site.whole(3).await;
        self.site.change().await;
    }

    fn is_over(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// The next test installs the chart again.
async fn remove(site: &Installation) {
    for policy in [POLICY, SECOND] {
        let delete = ["delete", "cap", policy, "--ignore-not-found"];
        site.kubectl.run(&delete).await;
    }
    site.run_helm(&["uninstall", "assent"]);
    let definitions = site.kubectl.run(&["get", "crd", "-o", "name"]).await;
    let own = definitions.lines().filter(|l| l.contains("assent.dev"));
    let own: Vec<&str> = own.collect();
    site.kubectl.run(&[&["delete"][..], &own].concat()).await;
    let namespaces = ["delete", "namespace", SYSTEM, crate::installation::SHOP];
    site.kubectl.run(&namespaces).await;
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn from_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
