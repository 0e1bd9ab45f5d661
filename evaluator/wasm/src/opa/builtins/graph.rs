//! Ways through a graph.

use std::collections::BTreeSet;

use regorus::Value;

use super::{Bounded, TooMuch, bounded::within};
use crate::opa::deadline;

/// Steps of all paths together: paths of a graph grow beyond any bound with its edges.
const MAX_STEPS: usize = 200_000;

pub(super) fn find(name: &str) -> Option<Bounded> {
    (name == "graph.reachable_paths").then_some(reachable_paths as Bounded)
}

/// All paths that begin at the given nodes and can't be extended.
struct Search<'v> {
    graph: &'v regorus::value::Object,
    found: BTreeSet<Value>,
    steps: usize,
}

fn reachable_paths(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(Value::Object(graph)), Some(initial)] = [args.first(), args.get(1)] else {
        return Ok(None);
    };
    let Some(initial) = nodes(initial) else {
        return Ok(None);
    };
    let mut search = Search {
        graph,
        found: BTreeSet::new(),
        steps: 0,
    };
    for node in initial {
        if graph.get(node).is_some() {
            search.walk(node)?;
        }
    }
    Ok(Some(Value::from(search.found)))
}

// === impl Search ===

impl<'v> Search<'v> {
    /// Depth first, with a stack of its own: a long path must not end the process.
    fn walk(&mut self, root: &'v Value) -> Result<(), TooMuch> {
        let mut path: Vec<&Value> = Vec::new();
        let mut open = vec![(0, root)];
        while let Some((depth, node)) = open.pop() {
            path.truncate(depth);
            let edges = self
                .graph
                .get(node)
                .map(|edges| nodes(edges).unwrap_or_default());
            // A node that the graph does not have, or that was passed already, ends the path before it;
            // OPA lets a root follow itself once.
            let Some(edges) = edges.filter(|_| depth < 2 || !path.contains(&node)) else {
                self.end(&path)?;
                continue;
            };
            deadline::check();
            self.steps += 1 + path.len();
            within(self.steps, MAX_STEPS)?;
            path.push(node);
            if edges.is_empty() {
                self.end(&path)?;
            }
            open.extend(edges.into_iter().rev().map(|next| (depth + 1, next)));
        }
        Ok(())
    }

    fn end(&mut self, path: &[&Value]) -> Result<(), TooMuch> {
        self.steps += path.len();
        within(self.steps, MAX_STEPS)?;
        deadline::reserve_values(1 + path.len());
        let path: Vec<Value> = path.iter().map(|node| (*node).clone()).collect();
        self.found.insert(Value::from(path));
        Ok(())
    }
}

/// The members of an array or a set.
fn nodes(value: &Value) -> Option<Vec<&Value>> {
    match value {
        Value::Array(items) => Some(items.iter().collect()),
        Value::Set(items) => Some(items.iter().collect()),
        _ => None,
    }
}
