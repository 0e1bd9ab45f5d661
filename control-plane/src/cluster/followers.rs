//! Followers lose their streams when their namespace loses its permission.

use std::time::Duration;

use assent_grpc::Hub;
use assent_k8s::admission::{AdmissionCache, AdmissionView, State as _};
use tokio::time::{self, MissedTickBehavior};

/// How often all streams are checked even if nothing changed: a stream may have been
/// authenticated just before a permission was withdrawn, and entered just after.
const INTERVAL: Duration = Duration::from_secs(10);

/// Closes streams of followers that are no longer allowed. It never returns.
pub(super) async fn revoke(cache: AdmissionCache, hub: Hub) {
    let mut changes = cache.changes();
    let mut ticks = time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Ok(()) = changes.changed() => {}
            _ = ticks.tick() => {}
        }
        if let Some(known) = cache.known() {
            let is_revoked = |server: &str, replica: &str| is_revoked(&known, server, replica);
            let why = "the namespace is no longer in spec.injection.allowedNamespaces of the PolicyServer";
            hub.revoke_streams(is_revoked, why);
        }
    }
}

/// Whether a replica is a follower, `<pod>.<namespace>`, whose namespace its PolicyServer does
/// not allow. A server that is not known is gone, which ends its streams anyway, or invalid.
fn is_revoked(known: &AdmissionView, server: &str, replica: &str) -> bool {
    let Some((_, namespace)) = replica.rsplit_once('.') else {
        return false;
    };
    let server = known.servers.get(server);
    server.is_some_and(|server| !server.allowed_namespaces.iter().any(|n| n == namespace))
}

#[cfg(test)]
mod tests {
    use assent_k8s::admission::ServerView;

    use super::*;

    #[test]
    fn only_followers_of_other_namespaces_are_revoked() {
        let server = ServerView {
            allowed_namespaces: vec!["shop".to_owned()],
            ..ServerView::default()
        };
        let known = AdmissionView {
            servers: [("default".to_owned(), server)].into(),
            ..AdmissionView::default()
        };
        for (server, replica, revoked) in [
            ("default", "web-0.shop", false),
            ("default", "web.v2-0.shop", false),
            ("default", "web-0.blog", true),
            ("default", "policy-server-default-0", false),
            ("invalid", "web-0.blog", false),
        ] {
            assert_eq!(is_revoked(&known, server, replica), revoked, "{replica}");
        }
    }
}
