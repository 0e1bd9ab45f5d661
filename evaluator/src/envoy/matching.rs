//! Which policies match a request. Hosts and paths are looked up: the cost does not grow with the number of
//! policies that do not match.

use std::collections::{BTreeMap, HashMap};

use assent_core::policy::{HeaderMatch, RequestMatch, RequestScope};

/// Matches requests with the numbers of policies.
#[derive(Default)]
pub(crate) struct Matcher {
    entries: Vec<Entry>,
    hosts: HashMap<String, Paths>,
    /// By what follows the `*`, with its dot.
    suffixes: HashMap<String, Paths>,
    any_host: Paths,
}

/// What a request is matched by.
pub(crate) struct Facts<'a> {
    /// As [`normal_host`] writes it.
    pub(crate) host: String,
    pub(crate) method: &'a str,
    /// By lower-case name.
    pub(crate) headers: &'a BTreeMap<String, String>,
}

/// The rest of a match, looked at once host and path fit.
struct Entry {
    policy: usize,
    methods: Vec<String>,
    headers: Vec<HeaderMatch>,
}

/// Entries by path.
#[derive(Default)]
struct Paths {
    exact: HashMap<String, Vec<usize>>,
    /// By length: a lookup tries each length that there is.
    prefixes: BTreeMap<usize, HashMap<String, Vec<usize>>>,
    any: Vec<usize>,
}

// === impl Matcher ===

impl Matcher {
    /// Policies are numbered in the order of the scopes.
    pub(crate) fn new<'a>(scopes: impl IntoIterator<Item = &'a RequestScope>) -> Self {
        let mut matcher = Self::default();
        for (policy, scope) in scopes.into_iter().enumerate() {
            if scope.matches.is_empty() {
                matcher.add(policy, &RequestMatch::default());
            }
            for entry in &scope.matches {
                matcher.add(policy, entry);
            }
        }
        matcher
    }

    fn add(&mut self, policy: usize, entry: &RequestMatch) {
        let number = self.entries.len();
        self.entries.push(Entry {
            policy,
            methods: entry.methods.clone(),
            headers: entry.headers.clone(),
        });
        if entry.hosts.is_empty() {
            self.any_host.add(number, entry);
        }
        for host in &entry.hosts {
            let paths = match host.strip_prefix('*') {
                Some(suffix) => self.suffixes.entry(suffix.to_owned()),
                None => self.hosts.entry(host.clone()),
            };
            paths.or_default().add(number, entry);
        }
    }

    /// The numbers of the policies that match, in order.
    pub(crate) fn find(&self, facts: &Facts<'_>, path: &str) -> Vec<usize> {
        let mut found = Vec::new();
        self.any_host.find(path, &mut found);
        if let Some(paths) = self.hosts.get(&facts.host) {
            paths.find(path, &mut found);
        }
        for (dot, _) in facts.host.match_indices('.').filter(|(at, _)| *at > 0) {
            if let Some(paths) = self.suffixes.get(&facts.host[dot..]) {
                paths.find(path, &mut found);
            }
        }
        let fitting = found.iter().map(|entry| &self.entries[*entry]);
        let fitting = fitting.filter(|entry| entry.fits(facts));
        let mut policies: Vec<usize> = fitting.map(|entry| entry.policy).collect();
        policies.sort_unstable();
        policies.dedup();
        policies
    }
}

// === impl Entry ===

impl Entry {
    fn fits(&self, facts: &Facts<'_>) -> bool {
        let method = self.methods.is_empty() || self.methods.iter().any(|m| m == facts.method);
        let has = |header: &HeaderMatch| {
            let value = facts.headers.get(&header.name);
            value.is_some_and(|value| header.exact.as_ref().is_none_or(|exact| exact == value))
        };
        method && self.headers.iter().all(has)
    }
}

// === impl Paths ===

impl Paths {
    fn add(&mut self, number: usize, entry: &RequestMatch) {
        if entry.paths.is_empty() && entry.path_prefixes.is_empty() {
            self.any.push(number);
        }
        for path in &entry.paths {
            self.exact.entry(path.clone()).or_default().push(number);
        }
        for prefix in &entry.path_prefixes {
            let prefix = prefix.trim_end_matches('/');
            let same_length = self.prefixes.entry(prefix.len()).or_default();
            same_length
                .entry(prefix.to_owned())
                .or_default()
                .push(number);
        }
    }

    fn find(&self, path: &str, found: &mut Vec<usize>) {
        found.extend(&self.any);
        found.extend(self.exact.get(path).into_iter().flatten());
        for (length, prefixes) in self.prefixes.range(..=path.len()) {
            let (Some(prefix), Some(rest)) = (path.get(..*length), path.get(*length..)) else {
                continue;
            };
            // Whole segments only.
            if rest.is_empty() || rest.starts_with('/') {
                found.extend(prefixes.get(prefix).into_iter().flatten());
            }
        }
    }
}

/// A host as policies name it: lower case, without port and final dot.
pub(crate) fn normal_host(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        // An IPv6 address has colons itself, and brackets around it.
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !is_bare_v6(host) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn is_bare_v6(host: &str) -> bool {
    host.contains(':') && !host.ends_with(']')
}

#[cfg(test)]
mod tests;
