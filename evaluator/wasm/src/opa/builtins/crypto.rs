//! Hashes, and JSON web tokens read without a check.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use regorus::Value;
use sha2::{Digest, Sha256, Sha512};

use super::{Own, string};

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "crypto.sha256" => |args| hashed(args, |text| Sha256::digest(text).to_vec()),
        "crypto.hmac.sha256" => |args| keyed(args, hmac_sha256),
        "crypto.hmac.sha512" => |args| keyed(args, hmac_sha512),
        "crypto.hmac.equal" => |args| Some(Value::Bool(string(args, 0)? == string(args, 1)?)),
        "io.jwt.decode" => |args| decode_jwt(string(args, 0)?),
        _ => return None,
    })
}

fn hashed(args: &[Value], hash: fn(&[u8]) -> Vec<u8>) -> Option<Value> {
    Some(Value::from(hex::encode(hash(string(args, 0)?.as_bytes()))))
}

fn keyed(args: &[Value], hash: fn(&[u8], &[u8]) -> Vec<u8>) -> Option<Value> {
    let (text, key) = (string(args, 0)?, string(args, 1)?);
    Some(Value::from(hex::encode(hash(
        text.as_bytes(),
        key.as_bytes(),
    ))))
}

fn hmac_sha256(text: &[u8], key: &[u8]) -> Vec<u8> {
    hmac::<Sha256>(text, key, 64)
}

fn hmac_sha512(text: &[u8], key: &[u8]) -> Vec<u8> {
    hmac::<Sha512>(text, key, 128)
}

/// RFC 2104.
fn hmac<D: Digest>(text: &[u8], key: &[u8], block: usize) -> Vec<u8> {
    let mut padded = if key.len() > block {
        D::digest(key).to_vec()
    } else {
        key.to_vec()
    };
    padded.resize(block, 0);
    let mask = |with: u8| padded.iter().map(|byte| byte ^ with).collect::<Vec<_>>();
    let inner = D::new()
        .chain_update(mask(0x36))
        .chain_update(text)
        .finalize();
    D::new()
        .chain_update(mask(0x5c))
        .chain_update(inner)
        .finalize()
        .to_vec()
}

/// Header, claims and signature, as OPA gives them: nothing is verified.
fn decode_jwt(token: &str) -> Option<Value> {
    let parts: Vec<_> = token.split('.').collect();
    let [header, claims, signature] = parts[..] else {
        return None;
    };
    let bytes = |part: &str| {
        BASE64_URL_SAFE_NO_PAD
            .decode(part.trim_end_matches('='))
            .ok()
    };
    let json = |part: &str| -> Option<Value> {
        let document: serde_json::Value = serde_json::from_slice(&bytes(part)?).ok()?;
        Some(Value::from(document))
    };
    let signature = Value::from(hex::encode(bytes(signature)?));
    Some(Value::from(vec![json(header)?, json(claims)?, signature]))
}
