//! Which crate names which, out of `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::document::Document;

/// The prefix that the document leaves out.
const PREFIX: &str = "assent-";

/// Crates in whose whole closure these libraries must not be.
const PURE: &[&str] = &["core", "context"];

/// Crates that name none of these themselves, nor does any crate of the workspace below them.
/// Their whole closure says nothing: features are unified over the workspace, so that `kube`,
/// from which `api` takes types, has a client below it as soon as any crate asks for one.
const RUNTIME_FREE: &[&str] = &["core", "context", "yaml", "api", "controller"];

/// Runtimes and what needs one.
const RUNTIMES: &[&str] = &[
    "axum",
    "hyper",
    "kube-client",
    "kube-runtime",
    "reqwest",
    "tokio",
    "tonic",
];

/// A crate of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Its name without the prefix.
    pub name: String,
    /// Its directory from the root; empty for the root.
    pub directory: String,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
    /// Everything below it, tests aside.
    pub closure: BTreeSet<String>,
}

/// One line of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Dependency {
    /// The library's name, or the crate's without its prefix.
    pub name: String,
    /// Whether it is a crate of this workspace.
    pub own: bool,
    /// Whether only tests have it.
    pub dev: bool,
    /// Features that are asked for.
    pub features: Vec<String>,
}

/// Reads what `cargo metadata` printed.
pub fn read(metadata: &Value) -> Result<Vec<Package>, String> {
    let root = text(&metadata["workspace_root"])?;
    let members: BTreeSet<&str> = array(&metadata["workspace_members"])?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let packages = array(&metadata["packages"])?;
    let names: BTreeMap<&str, &str> = packages
        .iter()
        .filter_map(|p| Some((p["id"].as_str()?, p["name"].as_str()?)))
        .collect();
    let graph = graph(&metadata["resolve"]["nodes"])?;
    let own: BTreeSet<&str> = members
        .iter()
        .filter_map(|id| names.get(id).copied())
        .collect();
    let mut found = Vec::new();
    for package in packages {
        let id = text(&package["id"])?;
        if !members.contains(id) {
            continue;
        }
        let manifest = text(&package["manifest_path"])?;
        let directory = manifest
            .strip_prefix(root)
            .and_then(|path| path.strip_suffix("Cargo.toml"))
            .ok_or_else(|| format!("{manifest} is not below {root}"))?;
        let dependencies = array(&package["dependencies"])?;
        found.push(Package {
            name: short(text(&package["name"])?),
            directory: directory.trim_matches('/').to_owned(),
            dependencies: dependencies
                .iter()
                .filter_map(|d| dependency(d, &own))
                .collect(),
            closure: closure(id, &graph, &names),
        });
    }
    Ok(found)
}

/// What in the manifests is not as the document has it.
pub fn check(document: &Document, packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    edges(document, packages, &mut wrong);
    libraries(document, packages, &mut wrong);
    map(document, packages, &mut wrong);
    purity(packages, &mut wrong);
    wrong
}

/// Equal, not only allowed: an edge that nobody needs any more leaves the document too.
fn edges(document: &Document, packages: &[Package], wrong: &mut Vec<String>) {
    for package in packages {
        let name = &package.name;
        let Some(uses) = document.crates.get(name) else {
            wrong.push(format!("ARCHITECTURE.md has no row for the crate {name}"));
            continue;
        };
        let own = |dev: bool| -> BTreeSet<String> {
            let own = package
                .dependencies
                .iter()
                .filter(|d| d.own && d.dev == dev);
            own.map(|d| d.name.clone()).collect()
        };
        let normal = own(false);
        let tests = &own(true) - &normal;
        differ(name, "", &uses.normal, &normal, wrong);
        differ(name, "tests of ", &uses.tests, &tests, wrong);
    }
    for name in document.crates.keys() {
        if !packages.iter().any(|p| p.name == *name) {
            wrong.push(format!(
                "ARCHITECTURE.md has a row for {name}, which is no crate"
            ));
        }
    }
}

fn differ(
    name: &str,
    of: &str,
    documented: &BTreeSet<String>,
    found: &BTreeSet<String>,
    wrong: &mut Vec<String>,
) {
    for used in found - documented {
        wrong.push(format!(
            "{of}{name} must not use {used}: ARCHITECTURE.md does not allow it"
        ));
    }
    for unused in documented - found {
        wrong.push(format!(
            "{of}{name} no longer use {unused}: remove it from ARCHITECTURE.md"
        ));
    }
}

fn libraries(document: &Document, packages: &[Package], wrong: &mut Vec<String>) {
    for (library, users) in &document.libraries {
        let (library_name, feature) = library.split_once('/').unwrap_or((library, ""));
        let uses = |p: &&Package| {
            p.dependencies.iter().any(|d| {
                let named = d.name == library_name && !d.own;
                named && (feature.is_empty() || d.features.iter().any(|f| f == feature))
            })
        };
        let found: BTreeSet<String> = packages
            .iter()
            .filter(uses)
            .map(|p| p.name.clone())
            .collect();
        let documented = &users.allowed | &users.exceptions;
        for name in &found - &documented {
            wrong.push(format!("{name} must not use {library}"));
        }
        for name in &users.exceptions - &found {
            wrong.push(format!(
                "{name} no longer uses {library}: remove the exception from ARCHITECTURE.md"
            ));
        }
        for name in &users.allowed - &found {
            wrong.push(format!(
                "{name} no longer uses {library}: remove it from ARCHITECTURE.md"
            ));
        }
    }
}

fn map(document: &Document, packages: &[Package], wrong: &mut Vec<String>) {
    for package in packages {
        // The root package has its sources in `proto`.
        let directory = match package.directory.as_str() {
            "" => "proto",
            directory => directory,
        };
        if !document.map.contains(directory) {
            wrong.push(format!("the code map of ARCHITECTURE.md lacks {directory}"));
        }
    }
}

fn purity(packages: &[Package], wrong: &mut Vec<String>) {
    let by_name = |name: &str| packages.iter().find(|p| p.name == name);
    for package in PURE.iter().filter_map(|name| by_name(name)) {
        for library in RUNTIMES.iter().chain(&["kube"]) {
            if package.closure.contains(*library) {
                wrong.push(format!(
                    "{library} is below {}, which is pure",
                    package.name
                ));
            }
        }
    }
    for package in RUNTIME_FREE.iter().filter_map(|name| by_name(name)) {
        let name = &package.name;
        for dependency in package.dependencies.iter().filter(|d| !d.dev) {
            let used = dependency.name.as_str();
            // Custom resources are derived with `kube`, which does not need its client.
            let forbidden = RUNTIMES.contains(&used) || (used == "kube" && name != "api");
            if !dependency.own && forbidden {
                wrong.push(format!("{name} must know no runtime, but uses {used}"));
            }
            if dependency.own && !RUNTIME_FREE.contains(&used) {
                wrong.push(format!(
                    "{name} must know no runtime, but uses {used}, which may"
                ));
            }
        }
    }
}

fn dependency(value: &Value, own: &BTreeSet<&str>) -> Option<Dependency> {
    let name = value["name"].as_str()?;
    let features = value["features"].as_array()?.iter();
    Some(Dependency {
        name: if own.contains(name) {
            short(name)
        } else {
            name.to_owned()
        },
        own: own.contains(name),
        dev: value["kind"].as_str() == Some("dev"),
        features: features
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    })
}

type Graph<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// What each package needs to be built, tests aside.
fn graph(nodes: &Value) -> Result<Graph<'_>, String> {
    let mut graph = Graph::new();
    for node in array(nodes)? {
        let needed = array(&node["deps"])?.iter().filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|k| k["kind"].as_str() != Some("dev")))
        });
        let needed = needed
            .filter_map(|dependency| dependency["pkg"].as_str())
            .collect();
        graph.insert(text(&node["id"])?, needed);
    }
    Ok(graph)
}

fn closure(id: &str, graph: &Graph<'_>, names: &BTreeMap<&str, &str>) -> BTreeSet<String> {
    let mut seen = BTreeSet::from([id]);
    let mut open = vec![id];
    while let Some(next) = open.pop() {
        for dependency in graph.get(next).into_iter().flatten() {
            if seen.insert(dependency) {
                open.push(dependency);
            }
        }
    }
    let names = seen.iter().filter_map(|id| names.get(id));
    names.map(|name| (*name).to_owned()).collect()
}

fn short(name: &str) -> String {
    name.strip_prefix(PREFIX).unwrap_or(name).to_owned()
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("failed to read cargo metadata: no text in {value}"))
}

fn array(value: &Value) -> Result<&Vec<Value>, String> {
    value
        .as_array()
        .ok_or_else(|| "failed to read cargo metadata: no list".to_owned())
}

#[cfg(test)]
mod tests;
