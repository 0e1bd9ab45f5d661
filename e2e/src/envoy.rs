//! A real Envoy in front of a real upstream.

use std::{
    convert::Infallible,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use serde_json::{Value, json};
use tokio::{io, net::TcpListener};

use crate::{eventually, process::Process, tools::tool, up::free_address};

/// Where Envoy asks.
#[derive(Clone, Debug)]
pub enum Authorizer {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A running Envoy with two listeners that differ in what an error of the authorizer means.
pub struct Envoy {
    /// The process.
    pub process: Process,
    /// Errors deny.
    pub closed: SocketAddr,
    /// Errors allow.
    pub open: SocketAddr,
    dir: tempfile::TempDir,
}

/// What came back through Envoy.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// Headers of the response.
    pub headers: hyper::HeaderMap,
    /// The body: what the upstream saw, if it was asked.
    pub body: Bytes,
}

// === impl Envoy ===

impl Envoy {
    /// Starts Envoy and an upstream.
    pub async fn start(authorizer: &Authorizer) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let upstream = upstream().await;
        let (closed, open) = (free_address(), free_address());
        let config = config(
            authorizer,
            upstream,
            [closed, open],
            &dir.path().join("access"),
        );
        let path = dir.path().join("envoy.json");
        fs::write(&path, config.to_string()).expect("configuration must be written");
        let mut command = Command::new(tool("ASSENT_ENVOY"));
        command.args([
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "-l",
            "warning",
            "-c",
        ]);
        let process = Process::start(command.arg(path), &dir.path().join("log"));
        let envoy = Self {
            process,
            closed,
            open,
            dir,
        };
        for port in [closed, open] {
            let listens = async || tokio::net::TcpStream::connect(port).await.is_ok();
            eventually("Envoy listens", listens).await;
        }
        envoy
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The lines of its access log: code, path and dynamic metadata of the authorizer.
    pub fn access(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("access")).unwrap_or_default();
        // Envoy may be about to write the rest of the last line.
        let lines = text.lines().map(serde_json::from_str);
        lines.filter_map(Result::ok).collect()
    }

    /// `GET` at the listener where errors deny.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        send(self.closed, "GET", path, headers, Bytes::new()).await
    }
}

// === impl Answer ===

impl Answer {
    /// The request as the upstream saw it.
    pub fn seen(&self) -> Value {
        assert_eq!(self.code, 200, "the upstream was not asked: {self:?}");
        serde_json::from_slice(&self.body).expect("the upstream must answer JSON")
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// All values of a header, in order.
    pub fn header(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

/// Sends a request.
pub async fn send(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Answer {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{to}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(body))
        .expect("a request must be valid");
    let response = client.request(request).await.expect("Envoy must answer");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the body must end").to_bytes();
    Answer {
        code: head.status.as_u16(),
        headers: head.headers,
        body,
    }
}

/// Rego compiled to a module.
pub fn rego(source: &str, entrypoint: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("temporary directory must be made");
    fs::write(dir.path().join("policy.rego"), source).expect("source must be written");
    let output = Command::new(tool("ASSENT_OPA"))
        .current_dir(dir.path())
        .args([
            "build",
            "--target",
            "wasm",
            "--entrypoint",
            entrypoint,
            "policy.rego",
        ])
        .output()
        .expect("opa must start");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let unpacked = Command::new("tar")
        .current_dir(dir.path())
        .args([
            "-xzf",
            "bundle.tar.gz",
            "--absolute-names",
            "--transform=s,^/,,",
            "/policy.wasm",
        ])
        .status();
    assert!(unpacked.expect("tar must start").success());
    fs::read(dir.path().join("policy.wasm")).expect("module must be there")
}

/// Answers every request with what it saw; echoes what comes after an upgrade.
async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("port must be free");
    let addr = listener.local_addr().expect("a socket has an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let service = service_fn(answer);
                let _ = builder
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    addr
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Some(protocol) = request.headers().get("upgrade").cloned() {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let (mut read, mut write) = io::split(TokioIo::new(upgraded));
                let _ = io::copy(&mut read, &mut write).await;
            }
        });
        let response = Response::builder()
            .status(101)
            .header("upgrade", protocol)
            .header("connection", "upgrade")
            .body(Full::default());
        return Ok(response.expect("a response must be valid"));
    }
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        json!([name.as_str(), value])
    });
    let seen = json!({
        "method": head.method.as_str(),
        "path": head.uri.path_and_query().map(|path| path.as_str()),
        "host": head.uri.host(),
        "headers": headers.collect::<Vec<_>>(),
        "body": body.len(),
    });
    let response = Response::builder()
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(seen.to_string())));
    Ok(response.expect("a response must be valid"))
}

fn config(
    authorizer: &Authorizer,
    upstream: SocketAddr,
    ports: [SocketAddr; 2],
    access: &Path,
) -> Value {
    let authz = match authorizer {
        Authorizer::Tcp(addr) => socket(*addr),
        Authorizer::Unix(path) => json!({"pipe": {"path": path}}),
    };
    let listeners = ports.iter().zip([false, true]);
    let listeners = listeners.map(|(port, open)| listener(*port, open, access));
    json!({
        "static_resources": {
            "listeners": listeners.collect::<Vec<_>>(),
            "clusters": [
                cluster("authz", authz, json!({"explicit_http_config": {"http2_protocol_options": {}}})),
                cluster("upstream", socket(upstream), json!({"use_downstream_protocol_config": {"http2_protocol_options": {}}})),
            ],
        },
    })
}

fn listener(port: SocketAddr, open: bool, access: &Path) -> Value {
    let ext_authz = json!({
        "name": "envoy.filters.http.ext_authz",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
            "transport_api_version": "V3",
            "failure_mode_allow": open,
            "failure_mode_allow_header_add": true,
            "grpc_service": {"envoy_grpc": {"cluster_name": "authz"}, "timeout": "5s"},
            "with_request_body": {"max_request_bytes": 1024, "allow_partial_message": true, "pack_as_bytes": open},
        },
    });
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    });
    let access = json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": access,
            "log_format": {"json_format": {
                "code": "%RESPONSE_CODE%",
                "path": "%REQ(:PATH)%",
                "metadata": "%DYNAMIC_METADATA(envoy.filters.http.ext_authz)%",
            }},
        },
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "codec_type": "AUTO",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [ext_authz, router],
        "access_log": [access],
        "access_log_options": {"access_log_flush_interval": "1s"},
        "route_config": {"virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}],
        }]},
    });
    json!({
        "address": socket(port),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }]}],
    })
}

fn cluster(name: &str, address: Value, protocol: Value) -> Value {
    let mut options = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    });
    for (key, value) in protocol.as_object().expect("options must be an object") {
        options[key] = value.clone();
    }
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

fn socket(addr: SocketAddr) -> Value {
    json!({"socket_address": {"address": addr.ip().to_string(), "port_value": addr.port()}})
}
