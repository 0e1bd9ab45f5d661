#![allow(clippy::unwrap_used)]
use assent_core::{
    Snapshot,
    session::{InitialRequest, Input, Nonce, Output, Session, StreamKind},
};
use http_body_util::BodyExt as _;

use super::*;
use crate::encode::{Content, Header};

fn mk_encoded() -> Encoded {
    let header = Header {
        version: "v".into(),
        control_plane: Default::default(),
        published_at: std::time::UNIX_EPOCH,
    };
    Encoded::new(StreamKind::Delta, &header, Content::no_change())
}

fn mk_nonce() -> Nonce {
    let mut out = Vec::new();
    let mut session = Session::new(StreamKind::Delta, 7, InitialRequest::default());
    session.step(Input::Publish(Arc::new(Snapshot::empty())), &mut out);
    match out.first() {
        Some(Output::Send(response)) => response.nonce,
        other => panic!("expected a response, got {other:?}"),
    }
}

fn poll(body: &mut PipeBody) -> Poll<Option<Frame<Bytes>>> {
    let mut cx = Context::from_waker(Waker::noop());
    let frame = http_body::Body::poll_frame(Pin::new(body), &mut cx);
    frame.map(|frame| frame.map(Result::unwrap))
}

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_deadline_runs_until_all_was_taken() {
    let (pipe, mut body) = Pipe::new();
    assert_eq!(pipe.send_deadline(LIMIT), None);
    pipe.push(&mk_encoded(), mk_nonce());
    let first = pipe.send_deadline(LIMIT).unwrap();
    assert!(!pipe.has_room());
    assert!(poll(&mut body).is_ready());
    assert!(pipe.has_room());
    // Handed over, but whoever took it has not come back: its window may be full.
    assert!(pipe.send_deadline(LIMIT).unwrap() >= first);
    assert!(poll(&mut body).is_pending());
    assert_eq!(pipe.send_deadline(LIMIT), None);
}

#[tokio::test]
async fn an_end_follows_what_is_there_but_closing_does_not_wait() {
    let (pipe, mut body) = Pipe::new();
    pipe.push(&mk_encoded(), mk_nonce());
    pipe.finish(Status::ok(""));
    assert!(body.frame().await.unwrap().unwrap().is_data());
    let trailers = body
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_trailers()
        .unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert!(body.frame().await.is_none());

    let (pipe, mut body) = Pipe::new();
    pipe.push(&mk_encoded(), mk_nonce());
    pipe.close(Status::aborted("newer"));
    pipe.close(Status::unavailable("later"));
    let trailers = body
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_trailers()
        .unwrap();
    assert_eq!(trailers["grpc-status"], "10");
    assert!(pipe.is_over());
}

#[tokio::test]
async fn nothing_is_queued_behind_an_end_or_for_nobody() {
    let (pipe, body) = Pipe::new();
    pipe.close(Status::aborted("newer"));
    pipe.push(&mk_encoded(), mk_nonce());
    assert!(pipe.has_room());
    drop(body);

    let (pipe, body) = Pipe::new();
    pipe.push(&mk_encoded(), mk_nonce());
    drop(body);
    pipe.changed().await;
    assert!(pipe.is_over() && pipe.has_room());
    pipe.push(&mk_encoded(), mk_nonce());
    assert!(pipe.has_room());
}

#[tokio::test]
async fn task_is_woken_when_there_is_room() {
    let (pipe, mut body) = Pipe::new();
    pipe.push(&mk_encoded(), mk_nonce());
    assert!(!pipe.has_room());
    assert!(poll(&mut body).is_ready());
    pipe.changed().await;
    assert!(pipe.has_room());
}
