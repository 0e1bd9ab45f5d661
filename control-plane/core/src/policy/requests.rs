//! Which requests a policy at Envoy decides about.

use crate::digest::Framed;

/// The `order` of policies that set none: the middle.
pub const DEFAULT_ORDER: u32 = 500;

/// Which requests a policy decides about, and when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestScope {
    /// A request is matched by any entry; without entries all requests are.
    pub matches: Vec<RequestMatch>,
    /// Policies are asked in this order, then by name.
    pub order: u32,
    /// Whether the policy gets bodies parsed.
    pub reads_body: bool,
}

/// One entry: all of the lists that are not empty must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// Exact, or `*.suffix`; lower case, without a port.
    pub hosts: Vec<String>,
    /// Exact paths.
    pub paths: Vec<String>,
    /// Whole segments: `/a` is a prefix of `/a` and `/a/b`, not of `/ab`.
    pub path_prefixes: Vec<String>,
    /// HTTP methods.
    pub methods: Vec<String>,
    /// Headers, all of which must match.
    pub headers: Vec<HeaderMatch>,
}

/// A header that a request must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Lower case.
    pub name: String,
    /// Its value; any if absent.
    pub exact: Option<String>,
}

// === impl RequestScope ===

impl Default for RequestScope {
    fn default() -> Self {
        Self {
            matches: Vec::new(),
            order: DEFAULT_ORDER,
            reads_body: true,
        }
    }
}

impl RequestScope {
    /// Adds what the content digest covers. The tag keeps it apart from other optional parts.
    pub(super) fn hash(&self, hash: &mut Framed) {
        hash.field(b"requests");
        hash.u32(self.order);
        hash.u8(self.reads_body.into());
        hash.count(self.matches.len());
        for entry in &self.matches {
            for list in [
                &entry.hosts,
                &entry.paths,
                &entry.path_prefixes,
                &entry.methods,
            ] {
                hash.count(list.len());
                for item in list {
                    hash.field(item.as_bytes());
                }
            }
            hash.count(entry.headers.len());
            for header in &entry.headers {
                hash.field(header.name.as_bytes());
                hash.u8(header.exact.is_some().into());
                hash.field(header.exact.as_deref().unwrap_or_default().as_bytes());
            }
        }
    }
}
