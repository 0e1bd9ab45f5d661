//! Extensions that Go takes apart.

use std::net::IpAddr;

use regorus::Value;
use x509_parser::extensions::{
    DistributionPointName, GeneralName, GeneralSubtree, NameConstraints, ParsedExtension,
    X509Extension,
};

use super::{address, base64, list, object, oid, oids};
use crate::opa::builtins::x509::chain::USES;

/// Fields that come from extensions, and the other names of the subject.
pub(super) struct Described<'a> {
    pub(super) fields: Vec<(&'static str, Value)>,
    pub(super) names: Names<'a>,
}

/// Names by their kind, in the order of the certificate.
#[derive(Default)]
pub(super) struct Names<'a> {
    pub(super) dns: Vec<&'a str>,
    pub(super) mail: Vec<&'a str>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) uris: Vec<&'a str>,
}

/// What is there without any extensions.
const DEFAULTS: [(&str, Initial); 29] = [
    ("AuthorityKeyId", Initial::Null),
    ("BasicConstraintsValid", Initial::False),
    ("CRLDistributionPoints", Initial::Null),
    ("ExcludedDNSDomains", Initial::Null),
    ("ExcludedEmailAddresses", Initial::Null),
    ("ExcludedIPRanges", Initial::Null),
    ("ExcludedURIDomains", Initial::Null),
    ("ExtKeyUsage", Initial::Null),
    ("InhibitAnyPolicy", Initial::Zero),
    ("InhibitAnyPolicyZero", Initial::False),
    ("InhibitPolicyMapping", Initial::Zero),
    ("InhibitPolicyMappingZero", Initial::False),
    ("IsCA", Initial::False),
    ("IssuingCertificateURL", Initial::Null),
    ("KeyUsage", Initial::Zero),
    ("MaxPathLen", Initial::Zero),
    ("MaxPathLenZero", Initial::False),
    ("OCSPServer", Initial::Null),
    ("PermittedDNSDomains", Initial::Null),
    ("PermittedDNSDomainsCritical", Initial::False),
    ("PermittedEmailAddresses", Initial::Null),
    ("PermittedIPRanges", Initial::Null),
    ("PermittedURIDomains", Initial::Null),
    ("Policies", Initial::Null),
    ("PolicyIdentifiers", Initial::Null),
    ("PolicyMappings", Initial::Null),
    ("RequireExplicitPolicy", Initial::Zero),
    ("RequireExplicitPolicyZero", Initial::False),
    ("SubjectKeyId", Initial::Null),
];

#[derive(Clone, Copy)]
enum Initial {
    Null,
    False,
    Zero,
}

// === impl Described ===

impl<'a> Described<'a> {
    pub(super) fn of(extensions: &'a [X509Extension<'a>]) -> Option<Self> {
        Self::of_all(extensions.iter())
    }

    /// None if an extension is malformed.
    pub(super) fn of_all(extensions: impl Iterator<Item = &'a X509Extension<'a>>) -> Option<Self> {
        let defaults = DEFAULTS.iter().map(|(name, default)| {
            let value = match default {
                Initial::Null => Value::Null,
                Initial::False => Value::Bool(false),
                Initial::Zero => Value::from(0_u64),
            };
            (*name, value)
        });
        let mut described = Self {
            fields: defaults.collect(),
            names: Names::default(),
        };
        let (mut unhandled, mut unknown_uses) = (Vec::new(), Vec::new());
        for extension in extensions {
            let handled = described.take(extension, &mut unknown_uses)?;
            if extension.critical && !handled {
                unhandled.push(oid(&extension.oid)?);
            }
        }
        described.fields.extend([
            ("UnhandledCriticalExtensions", list(unhandled.into_iter())),
            ("UnknownExtKeyUsage", list(unknown_uses.into_iter())),
        ]);
        Some(described)
    }

    /// Whether the extension was understood.
    fn take(
        &mut self,
        extension: &'a X509Extension<'a>,
        unknown_uses: &mut Vec<Value>,
    ) -> Option<bool> {
        match extension.parsed_extension() {
            ParsedExtension::ParseError { .. } => return None,
            ParsedExtension::SubjectAlternativeName(names) => {
                return Some(self.names.take(&names.general_names));
            }
            ParsedExtension::NameConstraints(constraints) => {
                return Some(self.constrain(constraints, extension.critical));
            }
            ParsedExtension::ExtendedKeyUsage(_) => self.uses(extension.value, unknown_uses)?,
            ParsedExtension::BasicConstraints(constraints) => {
                let length = constraints.path_len_constraint.filter(|_| constraints.ca);
                self.set("BasicConstraintsValid", Value::Bool(true));
                self.set("IsCA", Value::Bool(constraints.ca));
                self.set(
                    "MaxPathLen",
                    length.map_or(Value::from(-1_i64), |length| Value::from(u64::from(length))),
                );
                self.set("MaxPathLenZero", Value::Bool(length == Some(0)));
            }
            ParsedExtension::KeyUsage(usage) => {
                self.set("KeyUsage", Value::from(u64::from(usage.flags)))
            }
            ParsedExtension::SubjectKeyIdentifier(id) => self.set("SubjectKeyId", base64(id.0)),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                let id = id.key_identifier.as_ref();
                self.set("AuthorityKeyId", id.map_or(Value::Null, |id| base64(id.0)));
            }
            ParsedExtension::CRLDistributionPoints(points) => {
                let names = points
                    .iter()
                    .filter_map(|point| match &point.distribution_point {
                        Some(DistributionPointName::FullName(names)) => Some(names),
                        _ => None,
                    });
                self.set(
                    "CRLDistributionPoints",
                    list(names.flatten().filter_map(uri)),
                );
            }
            ParsedExtension::CertificatePolicies(policies) => {
                let ids = || policies.iter().map(|policy| &policy.policy_id);
                self.set(
                    "Policies",
                    list(ids().map(|id| Value::from(id.to_id_string()))),
                );
                self.set("PolicyIdentifiers", list(ids().filter_map(oid)));
            }
            ParsedExtension::PolicyMappings(mappings) => {
                let pairs = mappings.mappings.iter().map(|mapping| {
                    object([
                        (
                            "IssuerDomainPolicy",
                            Value::from(mapping.issuer_domain_policy.to_id_string()),
                        ),
                        (
                            "SubjectDomainPolicy",
                            Value::from(mapping.subject_domain_policy.to_id_string()),
                        ),
                    ])
                });
                self.set("PolicyMappings", list(pairs));
            }
            ParsedExtension::PolicyConstraints(constraints) => {
                self.count(
                    "RequireExplicitPolicy",
                    "RequireExplicitPolicyZero",
                    constraints.require_explicit_policy,
                );
                self.count(
                    "InhibitPolicyMapping",
                    "InhibitPolicyMappingZero",
                    constraints.inhibit_policy_mapping,
                );
            }
            ParsedExtension::InhibitAnyPolicy(inhibit) => {
                self.count(
                    "InhibitAnyPolicy",
                    "InhibitAnyPolicyZero",
                    Some(inhibit.skip_certs),
                );
            }
            ParsedExtension::AuthorityInfoAccess(access) => {
                // Its last number: 1 is OCSP, 2 the issuer.
                let of = |kind: u64| {
                    let found = access.iter().filter(move |one| {
                        let id = [1, 3, 6, 1, 5, 5, 7, 48, kind];
                        one.access_method.iter().is_some_and(|parts| parts.eq(id))
                    });
                    list(found.filter_map(|one| uri(&one.access_location)))
                };
                let (ocsp, issuer) = (of(1), of(2));
                self.set("OCSPServer", ocsp);
                self.set("IssuingCertificateURL", issuer);
            }
            _ => return Some(false),
        }
        Some(true)
    }

    fn uses(&mut self, der: &[u8], unknown: &mut Vec<Value>) -> Option<()> {
        let mut known = Vec::new();
        for id in oids(der)? {
            let parts: Vec<usize> = id
                .iter()?
                .map(|part| usize::try_from(part).unwrap_or(usize::MAX))
                .collect();
            match USES.iter().position(|(_, known)| *known == parts) {
                Some(number) => known.push(Value::from(number)),
                None => unknown.push(oid(&id)?),
            }
        }
        self.set("ExtKeyUsage", list(known.into_iter()));
        Some(())
    }

    /// Whether all kinds of names in it are understood.
    fn constrain(&mut self, constraints: &NameConstraints<'_>, critical: bool) -> bool {
        self.set("PermittedDNSDomainsCritical", Value::Bool(critical));
        let mut handled = true;
        let sides = [
            (
                &constraints.permitted_subtrees,
                [
                    "PermittedDNSDomains",
                    "PermittedIPRanges",
                    "PermittedEmailAddresses",
                    "PermittedURIDomains",
                ],
            ),
            (
                &constraints.excluded_subtrees,
                [
                    "ExcludedDNSDomains",
                    "ExcludedIPRanges",
                    "ExcludedEmailAddresses",
                    "ExcludedURIDomains",
                ],
            ),
        ];
        for (subtrees, [dns, ip, mail, uris]) in sides {
            let subtrees: &[GeneralSubtree<'_>] = subtrees.as_deref().unwrap_or_default();
            let pick = |take: fn(&GeneralName<'_>) -> Option<Value>| {
                list(subtrees.iter().filter_map(|subtree| take(&subtree.base)))
            };
            self.set(
                dns,
                pick(|name| match name {
                    GeneralName::DNSName(name) => Some(Value::from(*name)),
                    _ => None,
                }),
            );
            self.set(ip, pick(range));
            self.set(
                mail,
                pick(|name| match name {
                    GeneralName::RFC822Name(name) => Some(Value::from(*name)),
                    _ => None,
                }),
            );
            self.set(uris, pick(uri));
            handled &= subtrees.iter().all(|subtree| {
                matches!(
                    subtree.base,
                    GeneralName::DNSName(_)
                        | GeneralName::IPAddress(_)
                        | GeneralName::RFC822Name(_)
                        | GeneralName::URI(_)
                )
            });
        }
        handled
    }

    fn count(&mut self, name: &'static str, zero: &'static str, value: Option<u32>) {
        if let Some(value) = value {
            self.set(name, Value::from(u64::from(value)));
            self.set(zero, Value::Bool(value == 0));
        }
    }

    /// Fields are collected into a map, so the last value of one counts.
    fn set(&mut self, name: &'static str, value: Value) {
        self.fields.push((name, value));
    }
}

// === impl Names ===

impl<'a> Names<'a> {
    /// Whether there was a name of a kind that is understood.
    fn take(&mut self, names: &[GeneralName<'a>]) -> bool {
        for name in names {
            match name {
                GeneralName::DNSName(name) => self.dns.push(*name),
                GeneralName::RFC822Name(name) => self.mail.push(*name),
                GeneralName::URI(uri) => self.uris.push(*uri),
                GeneralName::IPAddress(bytes) => self.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        !(self.dns.is_empty()
            && self.mail.is_empty()
            && self.uris.is_empty()
            && self.addresses.is_empty())
    }
}

fn uri(name: &GeneralName<'_>) -> Option<Value> {
    match name {
        GeneralName::URI(uri) => Some(Value::from(*uri)),
        _ => None,
    }
}

/// An address and a mask, one after the other.
fn range(name: &GeneralName<'_>) -> Option<Value> {
    let GeneralName::IPAddress(bytes) = name else {
        return None;
    };
    let (ip, mask) = bytes.split_at(bytes.len() / 2);
    Some(object([
        ("IP", Value::from(address(ip)?.to_string())),
        ("Mask", base64(mask)),
    ]))
}
