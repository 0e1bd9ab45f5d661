//! JSON web tokens: read, and verified.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use regorus::Value;
use serde::de::IgnoredAny;

use super::{Context, Own, Timed, string, value};
use crate::opa::deadline;

mod key;

pub(super) use key::{Algorithm, Key};
use key::{NamedKey, keys};

/// The three parts of a token; its header is read.
struct Token<'a> {
    /// Header and claims as they were sent: the signature covers these bytes.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    header: Value,
}

/// The fields of a header that matter.
#[derive(Default)]
struct Header {
    algorithm: String,
    key_id: String,
    content_type: String,
    /// Whether it has a field that must be understood and is not.
    strange: bool,
}

/// What a token must meet.
#[derive(Default)]
struct Constraints {
    keys: Option<Vec<NamedKey>>,
    secret: String,
    algorithm: String,
    issuer: String,
    audience: String,
    /// Seconds.
    time: f64,
}

/// Tokens in tokens: one in another is unusual already.
const MAX_NESTING: usize = 8;

const ENCODING: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "io.jwt.decode" => |args| decode(string(args, 0)?, MAX_NESTING),
        "io.jwt.verify_hs256" => |args| verify(args, Algorithm::Hs256),
        "io.jwt.verify_hs384" => |args| verify(args, Algorithm::Hs384),
        "io.jwt.verify_hs512" => |args| verify(args, Algorithm::Hs512),
        "io.jwt.verify_rs256" => |args| verify(args, Algorithm::Rs256),
        "io.jwt.verify_rs384" => |args| verify(args, Algorithm::Rs384),
        "io.jwt.verify_rs512" => |args| verify(args, Algorithm::Rs512),
        "io.jwt.verify_ps256" => |args| verify(args, Algorithm::Ps256),
        "io.jwt.verify_ps384" => |args| verify(args, Algorithm::Ps384),
        "io.jwt.verify_ps512" => |args| verify(args, Algorithm::Ps512),
        "io.jwt.verify_es256" => |args| verify(args, Algorithm::Es256),
        "io.jwt.verify_es384" => |args| verify(args, Algorithm::Es384),
        "io.jwt.verify_es512" => |args| verify(args, Algorithm::Es512),
        "io.jwt.verify_eddsa" => |args| verify(args, Algorithm::EdDsa),
        _ => return None,
    })
}

pub(super) fn find_timed(name: &str) -> Option<Timed> {
    (name == "io.jwt.decode_verify").then_some(decode_verify as Timed)
}

/// Header, claims and signature; nothing is verified.
fn decode(text: &str, nesting: usize) -> Option<Value> {
    let token = Token::read(text)?;
    let claims = decoded(token.claims)?;
    if field(&token.header, "cty").is_some_and(|kind| *kind == Value::from("JWT")) {
        let inner = std::str::from_utf8(&claims).ok()?;
        return decode(inner.trim_matches(['"', '\'']), nesting.checked_sub(1)?);
    }
    let signature = Value::from(hex::encode(&token.signature));
    Some(Value::from(vec![token.header, object(&claims)?, signature]))
}

/// Whether the second argument, a secret or keys, signed the token.
fn verify(args: &[Value], algorithm: Algorithm) -> Option<Value> {
    let (text, key) = (string(args, 0)?, string(args, 1)?);
    if algorithm.is_symmetric() {
        let (signed, signature) = text
            .rsplit_once('.')
            .filter(|_| text.matches('.').count() == 2)?;
        let valid = Key::Secret(key.as_bytes().to_vec()).verify(
            algorithm,
            signed.as_bytes(),
            &decoded(signature)?,
        );
        return Some(Value::Bool(valid));
    }
    let keys = keys(key)?;
    let token = Token::read(text)?;
    let header = Header::read(&token.header)?;
    let valid = token.is_signed_by(&keys, &header, Some(algorithm));
    Some(Value::Bool(valid))
}

/// Whether the token is valid; then its header and claims, else nothing of it.
fn decode_verify(context: &Context, args: &[Value]) -> Option<Value> {
    let constraints = Constraints::read(context, args.get(1)?)?;
    let refused = || {
        Value::from(vec![
            Value::Bool(false),
            Value::new_object(),
            Value::new_object(),
        ])
    };
    let mut text = string(args, 0)?.to_owned();
    for _ in 0..MAX_NESTING {
        let token = Token::read(&text)?;
        let header = Header::read(&token.header)?;
        if !constraints.allow(&header) || !constraints.signed(&token, &header) {
            return Some(refused());
        }
        let claims = decoded(token.claims)?;
        if header.content_type.eq_ignore_ascii_case("JWT") {
            text = String::from_utf8(claims).ok()?;
            continue;
        }
        let claims = object(&claims)?;
        return Some(if constraints.met_by(&claims)? {
            Value::from(vec![Value::Bool(true), token.header, claims])
        } else {
            refused()
        });
    }
    None
}

// === impl Token ===

impl<'a> Token<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if claims.contains('.') {
            return None;
        }
        let header = object(&decoded(header)?)?;
        // Encrypted ones are another matter.
        if field(&header, "enc").is_some() {
            return None;
        }
        Some(Self {
            signed,
            claims,
            signature: decoded(signature)?,
            header,
        })
    }

    /// The key that the header names decides; without it any key will do whose algorithm fits.
    fn is_signed_by(&self, keys: &[NamedKey], header: &Header, with: Option<Algorithm>) -> bool {
        let Some(algorithm) = with.or_else(|| Algorithm::named(&header.algorithm)) else {
            return false;
        };
        let signed = |key: &NamedKey| {
            deadline::check();
            key.key
                .verify(algorithm, self.signed.as_bytes(), &self.signature)
        };
        let named = keys
            .iter()
            .find(|key| !header.key_id.is_empty() && key.id == header.key_id);
        match named {
            Some(key) => signed(key),
            None => keys
                .iter()
                .filter(|key| key.algorithm.is_empty() || key.algorithm == header.algorithm)
                .any(signed),
        }
    }
}

// === impl Header ===

impl Header {
    /// None if a field has the wrong type.
    fn read(header: &Value) -> Option<Self> {
        let text = |name: &str| match field(header, name) {
            None => Some(String::new()),
            Some(Value::String(text)) => Some(text.to_string()),
            Some(_) => None,
        };
        text("typ")?;
        let critical: Vec<&Value> = match field(header, "crit") {
            None => Vec::new(),
            Some(Value::Array(names)) if !names.is_empty() => names.iter().collect(),
            Some(_) => return None,
        };
        let known = ["alg", "kid", "typ", "cty", "crit"].map(Value::from);
        let is_there = |name: &&Value| {
            header
                .as_object()
                .is_ok_and(|fields| fields.contains_key(name))
        };
        Some(Self {
            algorithm: text("alg")?,
            key_id: text("kid")?,
            content_type: text("cty")?,
            strange: critical
                .iter()
                .any(|name| is_there(name) && !known.contains(name)),
        })
    }
}

// === impl Constraints ===

impl Constraints {
    fn read(context: &Context, value: &Value) -> Option<Self> {
        let mut constraints = Self::default();
        let mut time = None;
        for (name, value) in value.as_object().ok()?.iter() {
            let text = || match value {
                Value::String(text) => Some(text.to_string()),
                _ => None,
            };
            match name.as_string().ok()?.as_ref() {
                "cert" => constraints.keys = Some(keys(&text()?)?),
                "secret" => constraints.secret = text()?,
                "alg" => constraints.algorithm = text()?,
                "iss" => constraints.issuer = text()?,
                "aud" => constraints.audience = text()?,
                "time" => time = Some(number(value).filter(|time| *time >= 0.0)?),
                _ => return None,
            }
        }
        let now = || context.now_ns().as_ref().and_then(number);
        constraints.time = time.or_else(now)? / 1e9;
        let one_kind_of_key = constraints.keys.is_some() == constraints.secret.is_empty();
        one_kind_of_key.then_some(constraints)
    }

    fn allow(&self, header: &Header) -> bool {
        let expected = self.algorithm.is_empty() || self.algorithm == header.algorithm;
        expected && !header.algorithm.is_empty() && !header.strange
    }

    fn signed(&self, token: &Token<'_>, header: &Header) -> bool {
        let secret = || {
            vec![NamedKey {
                key: Key::Secret(self.secret.clone().into_bytes()),
                ..NamedKey::default()
            }]
        };
        match &self.keys {
            Some(keys) => token.is_signed_by(keys, header, None),
            None => token.is_signed_by(&secret(), header, None),
        }
    }

    /// None if a claim has the wrong type.
    fn met_by(&self, claims: &Value) -> Option<bool> {
        let is = |value: &Value, text: &str| *value == Value::from(text);
        let issuer = match field(claims, "iss") {
            _ if self.issuer.is_empty() => true,
            Some(issuer @ Value::String(_)) => is(issuer, &self.issuer),
            Some(_) => return None,
            None => false,
        };
        let audience = match field(claims, "aud") {
            None => self.audience.is_empty(),
            Some(Value::Array(all)) => all.iter().any(|one| is(one, &self.audience)),
            Some(one) => is(one, &self.audience),
        };
        let bound = |name: &str, or: f64| match field(claims, name) {
            None => Some(or),
            Some(value) => number(value),
        };
        let until = bound("exp", f64::INFINITY)?;
        let from = bound("nbf", f64::NEG_INFINITY)?;
        Some(issuer && audience && self.time < until && self.time >= from)
    }
}

/// An object out of JSON; of a name that comes twice the last counts.
fn object(json: &[u8]) -> Option<Value> {
    serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(json).ok()?;
    value::parse(json).ok()
}

pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    ENCODING.decode(text).ok()
}

pub(super) fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.as_object().ok()?.get(&Value::from(name))
}

/// The nearest that floating point has: seconds are compared, and times in nanoseconds have too many digits.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(_) => value::number(value).parse().ok(),
        _ => None,
    }
}
