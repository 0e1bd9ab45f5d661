//! Requests that were made to be misread, through Envoy and straight to the evaluator.

use std::net::SocketAddr;

use assent_e2e::{
    Options, Up,
    envoy::{Authorizer, Envoy, rego},
    up::free_address,
};
use assent_proto::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse,
    attribute_context::{HttpRequest, Request},
    authorization_client::AuthorizationClient,
    check_response::HttpResponse,
};
use tonic::{Code, Status};

use super::policy;

/// Allows what it sees; what it does not see is the default's.
const ALLOW: &str = "package a\n\ndecision := true\n";
const DENY: &str = "package d\n\ndecision := {\"allowed\": false, \"body\": \"guarded\"}\n";

async fn start() -> (Up, SocketAddr) {
    let authz = free_address();
    let options = Options::replicas(1)
        .args(&["--authz", &authz.to_string()])
        .file("a.wasm", rego(ALLOW, "a/decision"))
        .file("d.wasm", rego(DENY, "d/decision"))
        .file(
            "public.yaml",
            policy("public", "a.wasm", "  match: [{pathPrefixes: [/public]}]\n"),
        )
        .file(
            "guard.yaml",
            policy("guard", "d.wasm", "  match: [{pathPrefixes: [/admin]}]\n"),
        );
    let up = Up::start(options).await;
    up.wait_enforced("public", 1).await;
    up.wait_enforced("guard", 1).await;
    (up, authz)
}

async fn ask(authz: SocketAddr, http: HttpRequest) -> Result<CheckResponse, Status> {
    let client = AuthorizationClient::connect(format!("http://{authz}")).await;
    let mut client = client.unwrap().max_encoding_message_size(64 << 20);
    let request = CheckRequest {
        attributes: Some(AttributeContext {
            request: Some(Request {
                http: Some(http),
                ..Request::default()
            }),
            ..AttributeContext::default()
        }),
    };
    Ok(client.check(request).await?.into_inner())
}

fn mk(path: &str) -> HttpRequest {
    HttpRequest {
        method: "GET".into(),
        path: path.into(),
        host: "x".into(),
        ..HttpRequest::default()
    }
}

/// The status for the client; 200 is allowed.
fn code(response: &CheckResponse) -> i32 {
    match response.http_response.as_ref().unwrap() {
        HttpResponse::OkResponse(_) => 200,
        HttpResponse::DeniedResponse(denied) => denied.status.as_ref().unwrap().code,
    }
}

#[tokio::test]
async fn paths_can_not_be_misread() {
    let (_up, authz) = start().await;
    for (path, expected) in [
        ("/public", 200),
        ("/public/x?y=/admin", 200),
        ("/%70ublic", 200),
        ("/publicity", 403),
        ("/other", 403),
        ("/admin", 403),
        ("/%61dmin", 403),
        ("//admin", 403),
        ("/public/../admin", 403),
        ("/public/%2e%2e/admin", 403),
        ("/public%2f..%2fadmin", 403),
        ("/public/..%5cadmin", 403),
        ("/admin/../public", 403),
        ("/other/../public", 403),
        ("//public", 403),
        ("/public/%00", 400),
        ("/public/%zz", 400),
        ("/public/%0d%0aa", 400),
        ("", 403),
        ("*", 403),
    ] {
        let response = ask(authz, mk(path)).await.unwrap();
        assert_eq!(code(&response), expected, "{path:?}");
    }
    let envoy = Envoy::start(&Authorizer::Tcp(authz)).await;
    for (path, expected) in [
        ("/public", 200),
        ("/public/%00", 400),
        ("/public//x", 200),
        ("/public/../admin", 403),
        ("//admin", 403),
    ] {
        assert_eq!(envoy.get(path, &[]).await.code, expected, "{path}");
    }
}

#[tokio::test]
async fn large_requests_are_decided_or_refused() {
    let (_up, authz) = start().await;
    let mut headers = mk("/public");
    headers
        .headers
        .insert("x-large".into(), "h".repeat(60 << 10));
    assert_eq!(code(&ask(authz, headers).await.unwrap()), 200);
    let with_body = |length: usize| HttpRequest {
        raw_body: vec![b'b'; length].into(),
        ..mk("/public")
    };
    assert_eq!(code(&ask(authz, with_body(8 << 20)).await.unwrap()), 200);
    let refused = ask(authz, with_body(10 << 20)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let envoy = Envoy::start(&Authorizer::Tcp(authz)).await;
    let long = "h".repeat(50 << 10);
    assert_eq!(envoy.get("/public", &[("x-large", &long)]).await.code, 200);
    // Envoy itself refuses more.
    let longer = "h".repeat(70 << 10);
    assert_eq!(
        envoy.get("/public", &[("x-large", &longer)]).await.code,
        431
    );
    // Repeated headers are one value for policies.
    let twice = [("x-a", "1"), ("x-a", "2")];
    assert_eq!(envoy.get("/public", &twice).await.code, 200);
}

#[tokio::test]
async fn incomplete_calls_are_errors() {
    let (_up, authz) = start().await;
    let client = AuthorizationClient::connect(format!("http://{authz}")).await;
    let refused = client
        .unwrap()
        .check(CheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}
