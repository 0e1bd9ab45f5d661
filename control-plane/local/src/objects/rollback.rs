//! Going back to an earlier revision.

use assent_api::{parse::Rollback, revision::Phase};
use serde_json::Value;

use super::{Error, Override, Record, Revision};

/// How a rollback is written in an annotation.
pub(super) fn text(rollback: Rollback) -> String {
    match rollback {
        Rollback::Previous => "previous".to_owned(),
        Rollback::Generation(generation) => generation.to_string(),
    }
}

/// The revision that a rollback goes to. Only one that was active before is good for it: a
/// candidate was never shown to work.
pub(super) fn find(record: &Record, to: Rollback) -> Result<&Revision, Error> {
    let served = |revision: &&Revision| {
        matches!(
            revision.phase,
            Phase::Draining | Phase::History | Phase::Active
        )
    };
    let found = match to {
        Rollback::Previous => record
            .revisions
            .iter()
            .filter(served)
            .filter(|r| r.generation < record.generation)
            .max_by_key(|r| r.generation),
        Rollback::Generation(generation) => {
            let mut revisions = record.revisions.iter().filter(served);
            revisions.find(|r| r.generation == generation)
        }
    };
    found.ok_or_else(|| Error::NoRevision {
        policy: record.key(),
        wanted: match to {
            Rollback::Previous => "revision before the active one".to_owned(),
            Rollback::Generation(generation) => format!("revision of generation {generation}"),
        },
        kept: kept(record),
    })
}

/// What takes the place of the manifest's spec.
pub(super) fn from(revision: &Revision) -> Override {
    Override {
        spec: pin(&revision.spec, &revision.module_digest),
        module_digest: revision.module_digest.clone(),
        from_generation: revision.generation,
    }
}

/// Pins the module by its digest where its URL can say so. Others are found by the digest.
fn pin(spec: &str, digest: &str) -> String {
    let Ok(mut value) = assent_api::json::from_str(spec) else {
        return spec.to_owned();
    };
    if let Some(module) = value["module"]
        .as_str()
        .and_then(|url| pin_url(url, digest))
    {
        value["module"] = Value::from(module);
    }
    assent_api::canonical::to_string(&value)
}

fn pin_url(url: &str, digest: &str) -> Option<String> {
    let (scheme, image) = url.split_once("://").unwrap_or(("registry", url));
    if scheme != "registry" {
        return None;
    }
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    // A colon after the last slash is a tag, one before it is a port.
    let tag = image.rfind('/').map_or(0, |slash| slash + 1);
    let image = match image[tag..].find(':') {
        Some(colon) => &image[..tag + colon],
        None => image,
    };
    Some(format!("registry://{image}@{digest}"))
}

fn kept(record: &Record) -> String {
    let generations: Vec<String> = record
        .revisions
        .iter()
        .map(|r| r.generation.to_string())
        .collect();
    match generations.is_empty() {
        true => "no revisions".to_owned(),
        false => format!("revisions of generations {}", generations.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::pin_url;

    #[test]
    fn images_are_pinned() {
        for (url, expect) in [
            (
                "registry://example.com/p:v1",
                Some("registry://example.com/p@sha256:aa"),
            ),
            (
                "example.com:5000/a/p:v1",
                Some("registry://example.com:5000/a/p@sha256:aa"),
            ),
            (
                "example.com:5000/p",
                Some("registry://example.com:5000/p@sha256:aa"),
            ),
            (
                "registry://example.com/p:v1@sha256:bb",
                Some("registry://example.com/p@sha256:aa"),
            ),
            ("https://example.com/p.wasm", None),
            ("file://p.wasm", None),
        ] {
            assert_eq!(pin_url(url, "sha256:aa").as_deref(), expect, "{url}");
        }
    }
}
