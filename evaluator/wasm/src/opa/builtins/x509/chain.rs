//! Whether a certificate is vouched for.

use std::time::{Duration, SystemTime};

use regorus::Value;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage,
    RequiredEkuNotFoundContext,
};

use super::{parsed, since_epoch};

/// What is asked of a certificate.
pub(super) struct Options {
    time: Duration,
    name: String,
    /// Any of them will do.
    uses: Vec<&'static [usize]>,
}

/// The use that stands for all.
const ANY: &[usize] = &[2, 5, 29, 37, 0];
const SERVER: &[usize] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];

/// Names of uses, and their identifiers; their place is Go's number for them.
pub(super) const USES: [(&str, &[usize]); 14] = [
    ("KeyUsageAny", ANY),
    ("KeyUsageServerAuth", SERVER),
    ("KeyUsageClientAuth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("KeyUsageCodeSigning", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("KeyUsageEmailProtection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("KeyUsageIPSECEndSystem", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("KeyUsageIPSECTunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("KeyUsageIPSECUser", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("KeyUsageTimeStamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("KeyUsageOCSPSigning", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    (
        "KeyUsageMicrosoftServerGatedCrypto",
        &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3],
    ),
    (
        "KeyUsageNetscapeServerGatedCrypto",
        &[2, 16, 840, 1, 113_730, 4, 1],
    ),
    (
        "KeyUsageMicrosoftCommercialCodeSigning",
        &[1, 3, 6, 1, 4, 1, 311, 2, 1, 22],
    ),
    (
        "KeyUsageMicrosoftKernelCodeSigning",
        &[1, 3, 6, 1, 4, 1, 311, 61, 1, 1],
    ),
];

/// Checks that the first certificate vouches for the last, through those between; gives the chain, the last
/// certificate first.
pub(super) fn verify(certificates: &[Vec<u8>], options: &Options) -> Option<Vec<Vec<u8>>> {
    let [root, between @ .., leaf] = certificates else {
        return None;
    };
    // Anchors are trusted as they are; that includes when they end.
    let validity = parsed(root)?.validity().clone();
    let seconds = i64::try_from(options.time.as_secs()).ok()?;
    if seconds < validity.not_before.timestamp() || seconds > validity.not_after.timestamp() {
        return None;
    }
    let root_der = CertificateDer::from(root.as_slice());
    let anchors = [webpki::anchor_from_trusted_cert(&root_der).ok()?];
    let between: Vec<_> = between
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let leaf_der = CertificateDer::from(leaf.as_slice());
    let entity = EndEntityCert::try_from(&leaf_der).ok()?;
    let path = entity.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        &between,
        UnixTime::since_unix_epoch(options.time),
        options,
        None,
        None,
    );
    let path = path.ok()?;
    if !options.name.is_empty() {
        let name = ServerName::try_from(options.name.as_str()).ok()?;
        entity.verify_is_valid_for_subject_name(&name).ok()?;
    }
    let passed = path
        .intermediate_certificates()
        .map(|cert| cert.der().to_vec());
    let mut chain = vec![leaf.clone()];
    chain.extend(passed);
    chain.push(root.clone());
    Some(chain)
}

// === impl Options ===

impl Options {
    /// Without any options a certificate is asked to be a server's.
    pub(super) fn default_at(now: SystemTime) -> Self {
        Self {
            time: since_epoch(now),
            name: String::new(),
            uses: vec![SERVER],
        }
    }

    pub(super) fn read(value: &Value, now: SystemTime) -> Option<Self> {
        let mut options = Self::default_at(now);
        for (name, value) in value.as_object().ok()?.iter() {
            let Value::String(name) = name else {
                continue;
            };
            match (&**name, value) {
                ("DNSName", Value::String(name)) => {
                    options.name = name.trim_matches('"').to_owned()
                }
                ("CurrentTime", Value::Number(time)) => {
                    let nanos = u64::try_from(time.as_i64()?).unwrap_or(0);
                    options.time = Duration::from_nanos(nanos);
                }
                // The verifier has a bound of its own.
                ("MaxConstraintComparisons", Value::Number(most)) => {
                    most.as_i64()?;
                }
                ("KeyUsages", Value::Array(names)) => options.use_for(names.iter())?,
                ("KeyUsages", Value::Set(names)) => options.use_for(names.iter())?,
                _ => return None,
            }
        }
        Some(options)
    }

    fn use_for<'v>(&mut self, names: impl Iterator<Item = &'v Value>) -> Option<()> {
        let mut uses = Vec::new();
        for name in names {
            if let Value::String(name) = name {
                let name = name.trim_matches('"');
                uses.push(USES.iter().find(|(known, _)| *known == name)?.1);
            }
        }
        if !uses.is_empty() {
            self.uses = uses;
        }
        Some(())
    }
}

impl ExtendedKeyUsageValidator for &Options {
    /// A certificate that names no uses has all.
    fn validate(&self, uses: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        if self.uses.contains(&ANY) {
            return Ok(());
        }
        let mut named = false;
        for one in uses {
            let one = one?.to_decoded_oid();
            named = true;
            if one == ANY || self.uses.iter().any(|wanted| one == *wanted) {
                return Ok(());
            }
        }
        if named {
            let context = RequiredEkuNotFoundContext {
                required: KeyUsage::server_auth(),
                present: Vec::new(),
            };
            Err(webpki::Error::RequiredEkuNotFoundContext(context))
        } else {
            Ok(())
        }
    }
}
