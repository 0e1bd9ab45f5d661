//! Requests of guests, in the format of Kubewarden's SDKs.

use std::collections::BTreeMap;

use assent_core::Digest;
use assent_oci::{Error, Images, verify::Keys};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One request about an image.
#[derive(Debug)]
pub(super) enum Question {
    /// The digest of its manifest.
    Digest(String),
    /// Its manifest, or its index.
    Manifest(String),
    /// Its manifest and its configuration.
    ManifestAndConfig(String),
    /// Whether these keys signed it.
    Verify(String, Keys),
}

#[derive(Deserialize)]
enum VerifyV1 {
    #[serde(rename = "SigstorePubKeyVerify")]
    Keys(PublicKeys),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless {},
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum VerifyV2 {
    #[serde(rename = "SigstorePubKeyVerify")]
    Keys(PublicKeys),
    #[serde(rename = "SigstoreKeylessVerify")]
    Keyless {},
    #[serde(rename = "SigstoreKeylessPrefixVerify")]
    KeylessPrefix {},
    #[serde(rename = "SigstoreGithubActionsVerify")]
    GithubActions {},
    #[serde(rename = "SigstoreCertificateVerify")]
    Certificate {},
}

#[derive(Deserialize)]
struct PublicKeys {
    image: String,
    pub_keys: Vec<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
struct Verified {
    is_trusted: bool,
    digest: String,
}

#[derive(Serialize)]
struct ManifestDigest {
    digest: String,
}

#[derive(Serialize)]
struct ManifestAndConfig {
    manifest: Box<RawValue>,
    digest: String,
    config: Box<RawValue>,
}

const KEYLESS: &str = "keyless signatures are not supported: evaluators have no trust root of \
     Sigstore; sign with a key, and verify with public keys";

const CERTIFICATE: &str = "signatures by certificates are not supported; sign with a key, and verify \
     with public keys";

// === impl Question ===

impl Question {
    /// Parses the payload of an operation; the error is for the guest.
    pub(super) fn read(operation: &str, payload: &[u8]) -> Result<Self, String> {
        match operation {
            "v1/manifest_digest" => read(payload).map(Self::Digest),
            "v1/oci_manifest" => read(payload).map(Self::Manifest),
            "v1/oci_manifest_config" => read(payload).map(Self::ManifestAndConfig),
            "v1/verify" => match read(payload)? {
                VerifyV1::Keys(asked) => asked.question(),
                VerifyV1::Keyless {} => Err(KEYLESS.to_owned()),
            },
            "v2/verify" => match read(payload)? {
                VerifyV2::Keys(asked) => asked.question(),
                VerifyV2::Certificate {} => Err(CERTIFICATE.to_owned()),
                VerifyV2::Keyless {} | VerifyV2::KeylessPrefix {} | VerifyV2::GithubActions {} => {
                    Err(KEYLESS.to_owned())
                }
            },
            _ => Err(format!("unknown host call oci/{operation}")),
        }
    }

    /// Sends the request to the registry. An image that is not trusted is an error, as
    /// existing policies expect.
    pub(super) async fn answer(&self, images: &Images) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Digest(image) => json(&ManifestDigest {
                digest: images.digest(image).await?.to_string(),
            }),
            Self::Manifest(image) => json(&images.manifest(image).await?),
            Self::ManifestAndConfig(image) => {
                let found = images.manifest_and_config(image).await?;
                json(&ManifestAndConfig {
                    manifest: found.manifest,
                    digest: found.digest.to_string(),
                    config: found.config,
                })
            }
            Self::Verify(image, keys) => json(&Verified::from(images.verify(image, keys).await?)),
        })
    }
}

// === impl PublicKeys ===

impl PublicKeys {
    /// Each of the keys must have signed, as in Kubewarden.
    fn question(self) -> Result<Question, String> {
        let annotations = self.annotations.unwrap_or_default();
        let keys = Keys::all_of(&self.pub_keys, annotations).map_err(|error| error.to_string())?;
        Ok(Question::Verify(self.image, keys))
    }
}

// === impl Verified ===

impl From<Digest> for Verified {
    fn from(digest: Digest) -> Self {
        Self {
            is_trusted: true,
            digest: digest.to_string(),
        }
    }
}

fn read<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("invalid request: {error}"))
}

fn json(reply: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(reply).expect("a reply must be JSON")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check_refused(operation: &str, payload: &str, expect: &str) {
        let error = Question::read(operation, payload.as_bytes()).unwrap_err();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn image_reference_is_a_plain_string() {
        for operation in ["manifest_digest", "oci_manifest", "oci_manifest_config"] {
            let operation = format!("v1/{operation}");
            Question::read(&operation, br#""ghcr.io/a/b:v1""#).unwrap();
            check_refused(&operation, r#"{"image":"a"}"#, "invalid request");
        }
    }

    #[test]
    fn both_versions_of_verify_accept_public_keys() {
        let key = rcgen::KeyPair::generate().unwrap().public_key_pem();
        let asked = serde_json::json!({"image": "a/b", "pub_keys": [key], "annotations": null});
        let v1 = serde_json::json!({"SigstorePubKeyVerify": asked});
        let mut v2 = asked;
        v2["type"] = "SigstorePubKeyVerify".into();
        v2["annotations"] = serde_json::json!({"env": "prod"});
        for (operation, payload) in [("v1/verify", v1), ("v2/verify", v2)] {
            let question = Question::read(operation, payload.to_string().as_bytes());
            assert!(matches!(question, Ok(Question::Verify(image, _)) if image == "a/b"));
        }
    }

    #[test]
    fn unsupported_verification_is_rejected() {
        let keyless = r#"{"SigstoreKeylessVerify":{"image":"a","keyless":[{"issuer":"i","subject":"s"}],"annotations":null}}"#;
        check_refused("v1/verify", keyless, "no trust root");
        for (kind, expect) in [
            ("SigstoreKeylessVerify", "no trust root"),
            ("SigstoreKeylessPrefixVerify", "no trust root"),
            ("SigstoreGithubActionsVerify", "no trust root"),
            ("SigstoreCertificateVerify", "certificates"),
        ] {
            let payload = format!(r#"{{"type":"{kind}","image":"a","owner":"o","repo":null}}"#);
            check_refused("v2/verify", &payload, expect);
        }
        let none = r#"{"type":"SigstorePubKeyVerify","image":"a","pub_keys":[]}"#;
        check_refused("v2/verify", none, "no public key");
        check_refused("v2/verify", "{}", "invalid request");
        check_refused("v3/verify", "{}", "unknown host call oci/v3/verify");
    }
}
