//! One address in front of several.

use std::net::SocketAddr;

use assent_e2e::{kube::Balancer, up::free_address};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A server that sends its name and then echoes.
struct Echo {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Echo {
    async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind(free_address()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(name.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            }
        });
        Self { address, serving }
    }

    async fn stop(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }
}

/// Who answers, with the echo of a word.
async fn ask(balancer: &Balancer) -> String {
    let mut stream = TcpStream::connect(balancer.address()).await.unwrap();
    let mut answer = String::new();
    // A connection that nobody takes may be reset under the word.
    let _ = stream.write_all(b" hello").await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn balancer_rotates_and_skips_refusing_backends() {
    let (mut a, b) = (Echo::start("a").await, Echo::start("b").await);
    let balancer = Balancer::start([a.address, b.address]).await;
    let answers = [
        ask(&balancer).await,
        ask(&balancer).await,
        ask(&balancer).await,
    ];
    assert_eq!(answers, ["a hello", "b hello", "a hello"]);

    a.stop().await;
    assert_eq!(ask(&balancer).await, "b hello");
    assert_eq!(ask(&balancer).await, "b hello");

    balancer.set([a.address]);
    assert_eq!(ask(&balancer).await, "", "nobody is there");
    balancer.set([b.address]);
    assert_eq!(ask(&balancer).await, "b hello");
}
