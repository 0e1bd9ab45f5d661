//! Unverified claims of a token. They only spare requests: a token that names no pod, another
//! audience or an expiry in the past is refused without asking the API server, and nothing is
//! ever granted because of them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::Value;

use crate::names;

/// How far the clocks of this process and of the API server may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

#[derive(Deserialize)]
struct Claims {
    exp: Option<u64>,
    #[serde(default)]
    aud: Value,
}

/// When a token expires; none if it does not tell, or is not a JWT.
pub(super) fn expires(token: &str) -> Option<SystemTime> {
    let claims = claims(token)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp?))
}

/// Why a token can't be that of a replica; none if it can. Tokens of pods are always JWTs of
/// the API server, with an expiry and an audience.
pub(super) fn cannot_be_a_replica(token: &str, now: SystemTime) -> Option<String> {
    let Some(claims) = claims(token) else {
        return Some("it is not a JSON web token".to_owned());
    };
    let is_ours = |aud: &Value| aud.as_str() == Some(names::TOKEN_AUDIENCE);
    let audiences = claims.aud.as_array();
    if !is_ours(&claims.aud) && !audiences.is_some_and(|all| all.iter().any(is_ours)) {
        return Some(not_for_us());
    }
    let ends = claims
        .exp
        .and_then(|exp| UNIX_EPOCH.checked_add(Duration::from_secs(exp)));
    match ends {
        Some(ends) if ends + CLOCK_SKEW > now => None,
        Some(_) => Some("it has expired".to_owned()),
        None => Some("it does not expire".to_owned()),
    }
}

/// Why a token for another audience is refused.
pub(super) fn not_for_us() -> String {
    format!("it is not for the audience {}", names::TOKEN_AUDIENCE)
}

fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[track_caller]
    fn check(claims: &str, expect: Option<u64>) {
        let expect = expect.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(expires(&mk_token(claims)), expect, "{claims}");
    }

    #[test]
    fn expiry_is_read_from_the_claims() {
        check(r#"{"exp":1800000000,"aud":["x"]}"#, Some(1_800_000_000));
        check("{}", None);
        check(r#"{"exp":-1}"#, None);
        check(r#"{"exp":18446744073709551615}"#, None);
        check("nonsense", None);
        for token in ["", "a", "a.b", "a.!.c", "..."] {
            assert_eq!(expires(token), None, "{token}");
        }
    }

    #[test]
    fn tokens_of_replicas_have_an_audience_and_an_expiry() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let check = |claims: &str, expect: Option<&str>| {
            let refused = cannot_be_a_replica(&mk_token(claims), now);
            assert_eq!(refused.as_deref(), expect, "{claims}");
        };
        check(r#"{"exp":1000100,"aud":["assent-control-plane"]}"#, None);
        check(r#"{"exp":1000100,"aud":"assent-control-plane"}"#, None);
        // The clock of this process may be ahead.
        check(r#"{"exp":999900,"aud":["assent-control-plane"]}"#, None);
        let expired = Some("it has expired");
        check(r#"{"exp":999000,"aud":["assent-control-plane"]}"#, expired);
        let endless = Some("it does not expire");
        check(r#"{"aud":["assent-control-plane"]}"#, endless);
        let other = Some("it is not for the audience assent-control-plane");
        check(r#"{"exp":1000100,"aud":["other"]}"#, other);
        check(r#"{"exp":1000100}"#, other);
        let refused = cannot_be_a_replica("opaque", now);
        assert_eq!(refused.as_deref(), Some("it is not a JSON web token"));
    }
}
