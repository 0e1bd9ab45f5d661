//! The framing of a unary gRPC call.
//!
//! By hand, because a message is decoded only after memory was reserved for it, on the thread that evaluates; a gRPC
//! server would decode it before.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full, combinators::WithTrailers};
use prost::Message;
use tonic::{Code, Status};

/// The only method of the service.
pub(super) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Whether the message is compressed, and its length.
const HEAD: usize = 5;

pub(super) type Body = WithTrailers<
    Full<Bytes>,
    std::future::Ready<Option<Result<HeaderMap, std::convert::Infallible>>>,
>;

/// Refuses what is not a call of the method.
pub(super) fn check_call<B>(request: &Request<B>) -> Result<(), Status> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], HeaderValue::as_bytes);
    if request.method() != http::Method::POST || !kind.starts_with(b"application/grpc") {
        return Err(Status::new(
            Code::Unimplemented,
            "this port speaks gRPC only",
        ));
    }
    if request.uri().path() != CHECK {
        return Err(Status::new(
            Code::Unimplemented,
            format!("this port answers {CHECK} only"),
        ));
    }
    Ok(())
}

/// The message of a call.
pub(super) fn decode<M: Message + Default>(body: Bytes) -> Result<M, Status> {
    let bad = |why: String| Status::new(Code::InvalidArgument, why);
    let Some((head, _)) = body.split_at_checked(HEAD) else {
        return Err(bad("the call has no message".into()));
    };
    if head[0] != 0 {
        return Err(Status::new(
            Code::Unimplemented,
            "compressed messages are not supported",
        ));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if body.len() - HEAD != length {
        return Err(bad("the call must have exactly one message".into()));
    }
    let message = M::decode(body.slice(HEAD..));
    message.map_err(|error| bad(format!("failed to read the message: {error}")))
}

/// The response with a message.
pub(super) fn reply(message: &impl Message) -> Response<Body> {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEAD + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message
        .encode(&mut frame)
        .expect("the buffer must have room");
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    respond(frame.freeze(), Some(trailers))
}

/// The response without a message.
pub(super) fn fail(status: &Status) -> Response<Body> {
    let mut response = respond(Bytes::new(), None);
    // A message that can't be a header is left out: the code says enough.
    let _ = status.add_header(response.headers_mut());
    response
}

fn respond(body: Bytes, trailers: Option<HeaderMap>) -> Response<Body> {
    let trailers = std::future::ready(trailers.map(Ok));
    let mut response = Response::new(Full::new(body).with_trailers(trailers));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// How long the client waits, as gRPC writes it: digits and a unit.
pub(super) fn timeout(headers: &HeaderMap) -> Option<std::time::Duration> {
    use std::time::Duration;
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u32 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(3600) * number,
        "M" => Duration::from_secs(60) * number,
        "S" => Duration::from_secs(1) * number,
        "m" => Duration::from_millis(1) * number,
        "u" => Duration::from_micros(1) * number,
        "n" => Duration::from_nanos(1) * number,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use assent_proto::envoy::service::auth::v3::CheckRequest;

    use super::*;

    fn code(body: &[u8]) -> Code {
        decode::<CheckRequest>(Bytes::copy_from_slice(body))
            .unwrap_err()
            .code()
    }

    #[test]
    fn calls_have_exactly_one_message() {
        assert!(decode::<CheckRequest>(Bytes::from_static(&[0; 5])).is_ok());
        assert_eq!(code(b""), Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0, 0]), Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0, 0, 1]), Code::InvalidArgument);
        assert_eq!(code(&[0, 0, 0, 0, 0, 0]), Code::InvalidArgument);
        assert_eq!(code(&[0, 255, 255, 255, 255]), Code::InvalidArgument);
        assert_eq!(code(&[1, 0, 0, 0, 0]), Code::Unimplemented);
        assert_eq!(code(&[0, 0, 0, 0, 1, 0xff]), Code::InvalidArgument);
    }

    #[test]
    fn timeouts_have_units() {
        let parse = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            timeout(&headers)
        };
        assert_eq!(parse("200m"), Some(Duration::from_millis(200)));
        assert_eq!(parse("1S"), Some(Duration::from_secs(1)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        for wrong in ["", "m", "1", "1x", "-1m", "99999999999S"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
