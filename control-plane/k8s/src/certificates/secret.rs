//! The authority as a Secret holds it.

use std::{collections::BTreeMap, time::SystemTime};

use assent_pki::CaPair;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use rcgen::{KeyPair, PublicKeyData as _};

use super::{
    Authority, Error, Life, Lives,
    plan::{Dates, Step},
};
use crate::names;

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
const NEXT_CERTIFICATE: &str = "ca-next.crt";
const NEXT_KEY: &str = "ca-next.key";
const PREVIOUS: &str = "ca-previous.crt";
const GIVEN_CERTIFICATE: &str = "tls.crt";
const GIVEN_KEY: &str = "tls.key";

/// The leader restores the authority that it knows; a new leader creates one.
const HEAL: &str = "; delete the Secret to create it again";

/// The self-managed authorities.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Stored {
    current: Option<CaPair>,
    next: Option<CaPair>,
    previous: Vec<String>,
    signing_since: Option<SystemTime>,
    asked: Option<String>,
    answered: Option<String>,
}

// === impl Stored ===

impl Stored {
    pub(super) fn read(secret: &Secret) -> Result<Self, Error> {
        let note = |name: &str| {
            let notes = secret.metadata.annotations.as_ref();
            notes.and_then(|notes| notes.get(name)).cloned()
        };
        let since = note(names::SIGNING_SINCE_ANNOTATION);
        let since = since.and_then(|since| since.parse::<Timestamp>().ok());
        let previous = text(secret, PREVIOUS, true)?;
        Ok(Self {
            current: pair(secret, CERTIFICATE, KEY)?,
            next: pair(secret, NEXT_CERTIFICATE, NEXT_KEY)?,
            previous: match previous {
                Some(pem) => assent_pki::split(&pem).map_err(|why| broken(PREVIOUS, why, true))?,
                None => Vec::new(),
            },
            signing_since: since.map(SystemTime::from),
            asked: note(names::ROTATE_ANNOTATION),
            answered: note(names::ROTATED_ANNOTATION),
        })
    }

    pub(super) fn dates(&self) -> Result<Dates, Error> {
        let life = |key, pem: &str| -> Result<Life, Error> {
            let read = assent_pki::read(pem).map_err(|why| broken(key, why, true))?;
            Ok(read.life)
        };
        let of = |key, pair: &Option<CaPair>| {
            let pem = pair.as_ref().map(|pair| &pair.certificate);
            pem.map(|pem| life(key, pem)).transpose()
        };
        let previous = self.previous.iter().map(|pem| life(PREVIOUS, pem));
        Ok(Dates {
            current: of(CERTIFICATE, &self.current)?,
            next: of(NEXT_CERTIFICATE, &self.next)?,
            previous: previous.collect::<Result<_, _>>()?,
            signing_since: self.signing_since,
            asked: self.asked.is_some() && self.asked != self.answered,
        })
    }

    /// What is stored once a step was taken.
    pub(super) fn after(
        mut self,
        step: Step,
        now: SystemTime,
        lives: &Lives,
    ) -> Result<Self, Error> {
        match step {
            Step::Create => {
                self.current = Some(assent_pki::generate_ca(now, lives.authority)?);
                self.signing_since = Some(now);
                self.answered.clone_from(&self.asked);
            }
            Step::Prepare => {
                self.next = Some(assent_pki::generate_ca(now, lives.authority)?);
                self.answered.clone_from(&self.asked);
            }
            Step::Promote => {
                let old = std::mem::replace(&mut self.current, self.next.take());
                self.previous.extend(old.map(|old| old.certificate));
                self.signing_since = Some(now);
            }
            Step::Drop => self.previous.clear(),
            Step::Wait(_) => {}
        }
        Ok(self)
    }

    /// Writes it into the object that it was read from, or into a new one.
    pub(super) fn write(&self, mut secret: Secret) -> Secret {
        secret.metadata.name = Some(names::CA.to_owned());
        secret.metadata.managed_fields = None;
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.insert(
            names::MANAGED_BY.0.to_owned(),
            names::MANAGED_BY.1.to_owned(),
        );
        let notes = secret.metadata.annotations.get_or_insert_default();
        let since = self
            .signing_since
            .and_then(|at| Timestamp::try_from(at).ok());
        note(
            notes,
            names::SIGNING_SINCE_ANNOTATION,
            since.map(|at| at.to_string()),
        );
        note(notes, names::ROTATE_ANNOTATION, self.asked.clone());
        note(notes, names::ROTATED_ANNOTATION, self.answered.clone());
        let data = secret.data.get_or_insert_default();
        let previous = (!self.previous.is_empty()).then(|| self.previous.concat());
        let (current, next) = (self.current.as_ref(), self.next.as_ref());
        for (key, value) in [
            (CERTIFICATE, current.map(|pair| &pair.certificate)),
            (KEY, current.map(|pair| &pair.key)),
            (NEXT_CERTIFICATE, next.map(|pair| &pair.certificate)),
            (NEXT_KEY, next.map(|pair| &pair.key)),
            (PREVIOUS, previous.as_ref()),
        ] {
            match value {
                Some(value) => data.insert(key.to_owned(), ByteString(value.clone().into_bytes())),
                None => data.remove(key),
            };
        }
        secret
    }

    /// An authority that signs with the current one and trusts all; none if there is no current one.
    pub(super) fn authority(&self, lives: Lives) -> Result<Option<Authority>, Error> {
        let Some(current) = &self.current else {
            return Ok(None);
        };
        let next = self.next.as_ref().map(|next| &next.certificate);
        let all = [&current.certificate].into_iter().chain(next);
        let bundle = all.chain(&self.previous).map(String::as_str).collect();
        let (key, ends) = check(current, CERTIFICATE, KEY, true)?;
        Authority::new(current.certificate.clone(), key, bundle, ends, lives.leaf)
            .map(Some)
            .map_err(Error::from)
    }
}

/// The authority that cert-manager provides; `retired` are trusted as well.
pub(super) fn given(secret: &Secret, retired: &[String], lives: Lives) -> Result<Authority, Error> {
    let chain = text(secret, GIVEN_CERTIFICATE, false)?;
    let chain = chain.ok_or_else(|| missing(GIVEN_CERTIFICATE, false))?;
    let key = text(secret, GIVEN_KEY, false)?.ok_or_else(|| missing(GIVEN_KEY, false))?;
    let roots = text(secret, CERTIFICATE, false)?;
    let all = assent_pki::split(&chain).map_err(|why| broken(GIVEN_CERTIFICATE, why, false))?;
    let pair = CaPair {
        certificate: all.first().cloned().unwrap_or_default(),
        key,
    };
    let (key, ends) = check(&pair, GIVEN_CERTIFICATE, GIVEN_KEY, false)?;
    let roots = roots.filter(|roots| !roots.trim().is_empty());
    let roots = assent_pki::split(&roots.unwrap_or(chain));
    let mut bundle = roots.map_err(|why| broken(CERTIFICATE, why, false))?;
    let more = retired.iter().filter(|old| !bundle.contains(old));
    bundle.extend(more.cloned().collect::<Vec<_>>());
    let authority = Authority::new(all.concat(), key, bundle.concat(), ends, lives.leaf);
    Ok(authority?)
}

/// Whether it can sign: the key belongs to the certificate, and that is an authority's.
fn check(
    pair: &CaPair,
    certificate: &'static str,
    key: &'static str,
    ours: bool,
) -> Result<(KeyPair, SystemTime), Error> {
    let read = assent_pki::read(&pair.certificate).map_err(|why| broken(certificate, why, ours))?;
    if !read.is_ca {
        let why = "it is not a CA certificate".to_owned();
        return Err(broken(certificate, why, ours));
    }
    let keys =
        KeyPair::from_pem(&pair.key).map_err(|error| broken(key, error.to_string(), ours))?;
    if keys.subject_public_key_info() != read.public_key {
        let why = "it does not match the certificate".to_owned();
        return Err(broken(key, why, ours));
    }
    Ok((keys, read.life.ends))
}

fn pair(
    secret: &Secret,
    certificate: &'static str,
    key: &'static str,
) -> Result<Option<CaPair>, Error> {
    match (text(secret, certificate, true)?, text(secret, key, true)?) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing(key, true)),
        (None, Some(_)) => Err(missing(certificate, true)),
        (Some(certificate), Some(key)) => Ok(Some(CaPair { certificate, key })),
    }
}

fn text(secret: &Secret, key: &'static str, ours: bool) -> Result<Option<String>, Error> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.map(|bytes| String::from_utf8(bytes.0.clone()));
    text.transpose()
        .map_err(|_| broken(key, "it is not text".to_owned(), ours))
}

fn note(notes: &mut BTreeMap<String, String>, name: &str, value: Option<String>) {
    match value {
        Some(value) => notes.insert(name.to_owned(), value),
        None => notes.remove(name),
    };
}

fn missing(key: &'static str, ours: bool) -> Error {
    broken(key, "it is missing".to_owned(), ours)
}

fn broken(key: &'static str, why: String, ours: bool) -> Error {
    let heal = if ours { HEAL } else { "" };
    Error::Broken { key, why, heal }
}
