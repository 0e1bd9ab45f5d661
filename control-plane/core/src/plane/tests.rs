#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    digest::Version,
    fixtures::{
        mk_applied, mk_content, mk_id, mk_node, mk_policy, mk_refused, mk_rejection, mk_revision,
        show_output,
    },
    fleet::Name,
    policy::Policy,
    rollout::{Input, Refusal},
    session::Report,
    snapshot::{RouteState, Snapshot},
    status::ConditionType,
};

mod life;
mod props;
mod publishing;

const GRACE: Duration = Duration::from_secs(60);

/// As in a cluster, but with whole seconds that are easy to tell apart.
const TIMING: Timing = Timing {
    progress: Duration::from_secs(600),
    drain: Duration::from_secs(60),
    quiet: Duration::from_secs(30),
    longest_drain: Duration::from_secs(300),
    delete_drain: Duration::from_secs(10),
};

struct Script {
    plane: Plane,
    now: Millis,
}

impl Script {
    /// Nothing was read yet.
    fn new() -> Self {
        let mut script = Self {
            plane: Plane::new(GRACE),
            now: Millis(10_000),
        };
        script.serve("default");
        script
    }

    /// Everything was read, and it was nothing.
    fn synced() -> Self {
        let mut script = Self::new();
        script
            .step(Event::Synced, &[])
            .settle(&["publish"])
            .pass(1_000);
        script
    }

    /// One replica `x` on stream 1, and generation 1 of `p` is enforced on it.
    fn enforced() -> Self {
        let mut script = Self::synced();
        script.open("x", "i", 1).observe("p", 1).ready("p", 1);
        script.settle(&["publish p/1 candidate"]).pass(1_000);
        script.takes("x", 1, &["p: flip none to 1", "applied after 1s"]);
        script.flipped("p", 1, &["p: enforced after 1s", "publish p/1 active"]);
        script.takes("x", 1, &["applied after 0ns"]).pass(1_000);
        script
    }

    /// Feeds one event and expects exactly these effects, before anything is settled.
    #[track_caller]
    fn step(&mut self, event: impl Into<Event>, expect: &[&str]) -> &mut Self {
        let mut out = Vec::new();
        self.plane.apply(self.now, event.into(), &mut out);
        assert_eq!(out.iter().map(show).collect::<Vec<_>>(), expect);
        self
    }

    /// Settles and expects exactly these effects, and that nothing is left to settle.
    #[track_caller]
    fn settle(&mut self, expect: &[&str]) -> &mut Self {
        let mut out = Vec::new();
        self.plane.settle(self.now, &mut out);
        assert_eq!(out.iter().map(show).collect::<Vec<_>>(), expect);
        self.plane.settle(self.now, &mut out);
        assert_eq!(out.len(), expect.len(), "more came out");
        let next = self.plane.deadline();
        assert!(
            next.is_none_or(|at| at > self.now),
            "nothing happens at {next:?}"
        );
        self
    }

    /// Lets time pass; nothing may happen on the way.
    #[track_caller]
    fn pass(&mut self, millis: u64) -> &mut Self {
        self.now = self.now + Duration::from_millis(millis);
        self.settle(&[])
    }

    /// Waits for the next moment at which something happens.
    #[track_caller]
    fn wait(&mut self, millis: u64, expect: &[&str]) -> &mut Self {
        self.pass(millis - 1);
        let at = self.now + Duration::from_millis(1);
        assert_eq!(self.plane.deadline(), Some(at));
        self.now = at;
        self.settle(expect)
    }

    fn serve(&mut self, server: &str) -> &mut Self {
        let event = Event::ServerAdded {
            server: server.into(),
            counted: CountedReplicas::All,
        };
        self.step(event, &[])
    }

    #[track_caller]
    fn observe(&mut self, name: &str, generation: i64) -> &mut Self {
        let event = mk_observed(
            mk_id(name),
            "default",
            generation,
            StoredRevisions::default(),
        );
        self.step(event, &[])
    }

    #[track_caller]
    fn ready(&mut self, name: &str, generation: i64) -> &mut Self {
        self.step(Event::ready(mk_id(name), mk_policy(name, generation)), &[])
    }

    /// A policy and its revision, in one go.
    #[track_caller]
    fn add(&mut self, name: &str) -> &mut Self {
        self.observe(name, 1).ready(name, 1)
    }

    #[track_caller]
    fn open(&mut self, name: &str, instance: &str, stream: u64) -> &mut Self {
        let event = StreamEvent::Opened {
            node: mk_node(name, instance),
            identity: String::new(),
            stream,
        };
        self.step(event, &[])
    }

    #[track_caller]
    fn report(&mut self, name: &str, stream: u64, report: Report) -> &mut Self {
        let (server, replica) = ("default".into(), name.into());
        let event = StreamEvent::Reported {
            server,
            replica,
            stream,
            report,
        };
        self.step(event, &[])
    }

    /// The replica takes what was published last; what follows from that.
    #[track_caller]
    fn takes(&mut self, name: &str, stream: u64, expect: &[&str]) -> &mut Self {
        let published = self.published();
        self.report(name, stream, mk_applied(&published, &[]))
            .settle(expect)
    }

    #[track_caller]
    fn close(&mut self, name: &str, stream: u64) -> &mut Self {
        let (server, replica) = ("default".into(), name.into());
        let event = StreamEvent::Closed {
            server,
            replica,
            stream,
        };
        self.step(event, &[])
    }

    #[track_caller]
    fn policy(&mut self, name: &str, input: Input, expect: &[&str]) -> &mut Self {
        self.step(Event::Rollout(mk_id(name), input), expect)
    }

    /// The webhook names the revision; what is said at once, then what follows.
    #[track_caller]
    fn flipped(&mut self, name: &str, generation: i64, expect: &[&str]) -> &mut Self {
        let input = Input::Flipped(mk_revision(name, generation));
        self.policy(name, input, &expect[..1]).settle(&expect[1..])
    }

    fn published(&self) -> Arc<Snapshot> {
        self.plane
            .server("default")
            .unwrap()
            .published()
            .unwrap()
            .clone()
    }

    #[track_caller]
    fn enforced_is(&mut self, expect: &str) -> &mut Self {
        let status = self.plane.status(&mk_id("p")).unwrap();
        let condition = status.condition(ConditionType::Enforced);
        assert_eq!(condition.reason.as_str(), expect);
        self
    }
}

fn mk_observed(id: PolicyId, server: &str, generation: i64, stored: StoredRevisions) -> Event {
    Event::PolicyObserved {
        id,
        server: server.into(),
        generation,
        timing: TIMING,
        stored,
    }
}

/// Requests on a route of the cluster policy `name`.
fn mk_requests(name: &str, generation: i64) -> StreamEvent {
    StreamEvent::RetiredRequests {
        server: "default".into(),
        replica: "x".into(),
        path: mk_revision(name, generation),
        requests: 1,
    }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Publish { server, snapshot } => {
            let mut words = vec!["publish".to_owned()];
            words.extend((&**server != "default").then(|| format!("to {server}")));
            words.extend(snapshot.routes().map(|r| {
                let (policy, rest) = r.path.rsplit_once('/').unwrap();
                let name = policy.rsplit('/').next().unwrap();
                assert!(snapshot.contains(&r.path), "a route without its revision");
                format!(
                    "{name}/{} {}",
                    rest.split('-').next().unwrap(),
                    state(r.state)
                )
            }));
            assert_eq!(snapshot.routes().len(), snapshot.policies().len());
            words.join(" ")
        }
        Effect::Rollout(id, output) => format!("{}: {}", id.key.name(), show_output(output)),
        Effect::AppliedEverywhere { took, .. } => format!("applied after {took:?}"),
    }
}

fn state(state: RouteState) -> &'static str {
    match state {
        RouteState::Active => "active",
        RouteState::Candidate => "candidate",
        RouteState::Retired => "retired",
    }
}
