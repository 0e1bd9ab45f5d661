//! Hashes, with keys and without.

use md5::Md5;
use regorus::Value;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::{Own, string};

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "crypto.md5" => |args| hashed(args, |text| Md5::digest(text).to_vec()),
        "crypto.sha1" => |args| hashed(args, |text| Sha1::digest(text).to_vec()),
        "crypto.sha256" => |args| hashed(args, |text| Sha256::digest(text).to_vec()),
        "crypto.hmac.md5" => |args| keyed(args, |text, key| hmac::<Md5>(text, key, 64)),
        "crypto.hmac.sha1" => |args| keyed(args, |text, key| hmac::<Sha1>(text, key, 64)),
        "crypto.hmac.sha256" => |args| keyed(args, |text, key| hmac::<Sha256>(text, key, 64)),
        "crypto.hmac.sha512" => |args| keyed(args, |text, key| hmac::<Sha512>(text, key, 128)),
        "crypto.hmac.equal" => |args| Some(Value::Bool(string(args, 0)? == string(args, 1)?)),
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
