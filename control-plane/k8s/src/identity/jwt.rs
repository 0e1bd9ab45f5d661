//! The end of a token, read out of a token that somebody else has verified.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

#[derive(Deserialize)]
struct Claims {
    exp: Option<u64>,
}

/// When it ends; none where it does not say, or is no JWT.
pub(super) fn expires(token: &str) -> Option<SystemTime> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(claims: &str, expect: Option<u64>) {
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let expect = expect.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(expires(&token), expect, "{claims}");
    }

    #[test]
    fn ends() {
        check(r#"{"exp":1800000000,"aud":["x"]}"#, Some(1_800_000_000));
        check("{}", None);
        check(r#"{"exp":-1}"#, None);
        check(r#"{"exp":18446744073709551615}"#, None);
        check("nonsense", None);
        for token in ["", "a", "a.b", "a.!.c", "..."] {
            assert_eq!(expires(token), None, "{token}");
        }
    }
}
