//! What a policy at Envoy may not do to a request.

use http::{HeaderName, HeaderValue};

use super::RequestEffects;

/// Names that a policy may not set or remove: they belong to one connection, or decide where a request goes.
const REFUSED: &[&str] = &[
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// For headers of this project alone.
const RESERVED: &str = "x-assent-";

/// What a policy asked for and may not have. The evaluation counts as failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it changes the header {0:?}, which policies may not change")]
    Name(String),
    #[error("{0:?} is not the name of a header")]
    BadName(String),
    #[error("the header {0:?} has a value that no header can have")]
    BadValue(String),
}

/// Checks what a policy wants to change.
pub(super) fn check(effects: &RequestEffects) -> Result<(), Refused> {
    let lists = [&effects.headers, &effects.response_headers_to_add];
    for (name, values) in lists.into_iter().flat_map(|headers| &headers.0) {
        check_name(name)?;
        if values
            .iter()
            .any(|value| HeaderValue::from_str(value).is_err())
        {
            return Err(Refused::BadValue(name.clone()));
        }
    }
    let removed = effects.request_headers_to_remove.iter();
    removed.map(String::as_str).try_for_each(check_name)
}

fn check_name(name: &str) -> Result<(), Refused> {
    let lower = name.to_ascii_lowercase();
    let refused = lower.starts_with(':') || lower.starts_with(RESERVED);
    if refused || REFUSED.contains(&lower.as_str()) {
        return Err(Refused::Name(name.to_owned()));
    }
    match HeaderName::from_bytes(lower.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refused::BadName(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Headers;

    fn headers(name: &str, value: &str) -> RequestEffects {
        RequestEffects {
            headers: Headers(vec![(name.to_owned(), vec![value.to_owned()])]),
            ..RequestEffects::default()
        }
    }

    #[test]
    fn names_that_policies_may_not_change_are_refused() {
        for name in [
            ":authority",
            ":path",
            ":method",
            "Host",
            "connection",
            "Transfer-Encoding",
            "x-assent-revision",
            "X-Assent-Any",
            "te",
            "upgrade",
            "content-length",
        ] {
            let refused = Err(Refused::Name(name.to_owned()));
            assert_eq!(check(&headers(name, "x")), refused, "{name}");
            let removal = RequestEffects {
                request_headers_to_remove: vec![name.to_owned()],
                ..RequestEffects::default()
            };
            assert_eq!(check(&removal), refused, "{name}");
            let response = RequestEffects {
                response_headers_to_add: headers(name, "x").headers,
                ..RequestEffects::default()
            };
            assert_eq!(check(&response), refused, "{name}");
        }
        for name in ["", "a b", "a:b", "a\n"] {
            let refused = Err(Refused::BadName(name.to_owned()));
            assert_eq!(check(&headers(name, "x")), refused, "{name}");
        }
        assert_eq!(
            check(&headers("a", "x\r\ny: z")),
            Err(Refused::BadValue("a".into()))
        );
        assert_eq!(check(&headers("X-User", "alice")), Ok(()));
    }
}
