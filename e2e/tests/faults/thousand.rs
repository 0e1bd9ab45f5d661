//! F5: a thousand replicas, and the control plane restarts.

use assent_e2e::{Delta, Options, Up, client::node, hash::Held};
use assent_proto::v1::RouteState;
use futures::future::join_all;
use tonic::transport::Channel;

const CLIENTS: usize = 1_000;

/// Some share a connection, as replicas behind a proxy do.
const CONNECTIONS: usize = 20;

async fn channels(up: &Up) -> Vec<Channel> {
    join_all((0..CONNECTIONS).map(|_| up.channel())).await
}

fn all_active(held: &Held) -> bool {
    held.routes.len() == 3
        && held
            .routes
            .values()
            .all(|r| r.state() == RouteState::Active)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_clients_reconnect_without_resources() {
    let options = Options::default().policy("p").policy("q").policy("r");
    let mut up = Up::start(options.args(&["--replica-grace", "60"])).await;
    for name in ["p", "q", "r"] {
        up.wait_accepted(name, 1, "Accepted").await;
    }
    let open = channels(&up).await;
    let connect = async |n: usize| {
        let node = node(&format!("replica-{n}"));
        Delta::connect(open[n % CONNECTIONS].clone(), node).await
    };
    let mut streams = join_all((0..CLIENTS).map(connect)).await;
    join_all(streams.iter_mut().map(|stream| stream.follow(all_active))).await;
    let object = up.wait_enforced("p", 1).await;
    assert_eq!(object["status"]["rollout"]["applied"], CLIENTS);
    let held = streams[0].held().clone();
    up.process.kill();
    drop(streams);
    up.restart().await;

    let open = channels(&up).await;
    let resume = async |n: usize| {
        let node = node(&format!("replica-{n}"));
        let mut stream = Delta::resume(open[n % CONNECTIONS].clone(), node, &held).await;
        let response = stream.next().await;
        assert!(response.no_change, "{response:?}");
        assert_eq!(response.version_info, held.version());
        stream.ack(&response).await;
        stream
    };
    let _streams = join_all((0..CLIENTS).map(resume)).await;
    let back = |p: &serde_json::Value| p["status"]["rollout"]["applied"] == CLIENTS;
    let object = up.wait("p", "applied by all", back).await;
    assert_eq!(object["status"]["active"]["generation"], 1);
    for kind in ["full", "delta"] {
        let pushes = format!("assent_discovery_pushes_total{{kind=\"{kind}\"}}");
        assert_eq!(up.metric(&pushes).await, 0.0, "{kind}");
    }
    let confirmed = up
        .metric("assent_discovery_pushes_total{kind=\"no_change\"}")
        .await;
    assert_eq!(confirmed, CLIENTS as f64);
}
