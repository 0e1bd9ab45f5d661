//! What a text declares and calls, read from its syntax tree.

use std::collections::BTreeSet;

use regorus::{
    unstable::{BUILTINS, Expr, Literal, Module, Query, Ref, Rule, RuleHead, Span},
    utils::get_path_string,
};

use crate::functions;

/// What the texts of a policy declare.
pub(crate) struct Found {
    /// The package of the first text.
    pub(crate) package: String,
    /// The paths of all rules.
    pub(crate) rules: BTreeSet<String>,
    /// Whether `data` is read outside of the packages.
    pub(crate) reads_data: bool,
    /// The first call of a function that does not exist here.
    pub(crate) problem: Option<String>,
}

/// Keywords that can be imported.
const KEYWORDS: [&str; 4] = ["contains", "every", "if", "in"];

/// Where modules of OPA and Gatekeeper find objects of the cluster.
const OBJECTS: [&str; 2] = ["data.inventory", "data.kubernetes"];

struct Walker<'a> {
    packages: Vec<String>,
    package: String,
    imports: Vec<(String, String)>,
    functions: &'a BTreeSet<String>,
    reads_data: bool,
    problem: Option<String>,
}

pub(crate) fn modules(modules: &[Ref<Module>]) -> Found {
    let mut rules = BTreeSet::new();
    let mut functions = BTreeSet::new();
    let packages: Vec<_> = modules.iter().map(|module| package(module)).collect();
    for (module, package) in modules.iter().zip(&packages) {
        for rule in &module.policy {
            let (name, is_function) = head(rule);
            let all = if is_function {
                &mut functions
            } else {
                &mut rules
            };
            all.insert(format!("{package}.{name}"));
        }
    }
    let mut walker = Walker {
        package: String::new(),
        packages: packages.clone(),
        imports: Vec::new(),
        functions: &functions,
        reads_data: false,
        problem: None,
    };
    for (module, package) in modules.iter().zip(&packages) {
        package.clone_into(&mut walker.package);
        walker.module(module);
    }
    Found {
        reads_data: walker.reads_data,
        problem: walker.problem,
        package: packages.into_iter().next().unwrap_or_default(),
        rules,
    }
}

fn package(module: &Module) -> String {
    let path = get_path_string(&module.package.refr, None).unwrap_or_default();
    format!("data.{path}")
}

/// The name of a rule, and whether it is a function.
fn head(rule: &Rule) -> (String, bool) {
    let (refr, is_function) = match rule {
        Rule::Spec { head, .. } => match head {
            RuleHead::Compr { refr, .. } | RuleHead::Set { refr, .. } => (refr, false),
            RuleHead::Func { refr, .. } => (refr, true),
        },
        Rule::Default { refr, args, .. } => (refr, !args.is_empty()),
    };
    (get_path_string(refr, None).unwrap_or_default(), is_function)
}

/// Whether a part of a rule's name is a variable.
fn has_variable(name: &Ref<Expr>) -> bool {
    match name.as_ref() {
        Expr::RefBrack { refr, index, .. } => {
            matches!(index.as_ref(), Expr::Var { .. }) || has_variable(refr)
        }
        Expr::RefDot { refr, .. } => has_variable(refr),
        _ => false,
    }
}

impl Walker<'_> {
    fn module(&mut self, module: &Module) {
        self.imports = module
            .imports
            .iter()
            .filter_map(|import| {
                let path = get_path_string(&import.refr, None).ok()?;
                let last = path.rsplit('.').next()?.to_owned();
                let alias = import.r#as.as_ref().map(|span| span.text().to_owned());
                Some((alias.unwrap_or(last), path))
            })
            .collect();
        for (import, (_, path)) in module.imports.iter().zip(self.imports.clone()) {
            self.refuse_keyword(&path, &import.span);
            self.refuse_objects(&path, &import.span);
            self.data(&path);
        }
        for rule in &module.policy {
            self.rule(rule);
        }
    }

    fn rule(&mut self, rule: &Rule) {
        match rule {
            Rule::Default { value, .. } => self.expr(value),
            Rule::Spec { head, bodies, .. } => {
                match head {
                    RuleHead::Compr { refr, assign, .. } => {
                        self.indexes(refr);
                        self.exprs(assign.iter().map(|assign| &assign.value));
                    }
                    RuleHead::Set { refr, key, .. } => {
                        if has_variable(refr) {
                            self.refuse(
                                refr.span(),
                                "a set whose name has a variable in it is not available: make it an object of sets",
                            );
                        }
                        self.indexes(refr);
                        self.exprs(key);
                    }
                    RuleHead::Func { args, assign, .. } => {
                        self.exprs(args);
                        self.exprs(assign.iter().map(|assign| &assign.value));
                    }
                }
                for body in bodies {
                    self.exprs(body.assign.iter().map(|assign| &assign.value));
                    self.query(&body.query);
                }
            }
        }
    }

    fn query(&mut self, query: &Query) {
        for statement in &query.stmts {
            match &statement.literal {
                Literal::SomeVars { .. } => {}
                Literal::SomeIn {
                    key,
                    value,
                    collection,
                    ..
                } => {
                    self.exprs(key);
                    self.expr(value);
                    self.expr(collection);
                }
                Literal::Expr { expr, .. } | Literal::NotExpr { expr, .. } => self.expr(expr),
                Literal::Every { domain, query, .. } => {
                    self.expr(domain);
                    self.query(query);
                }
            }
            for with in &statement.with_mods {
                self.expr(&with.r#as);
            }
        }
    }

    fn exprs<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Ref<Expr>>) {
        for expr in exprs {
            self.expr(expr);
        }
    }

    /// Expressions in the brackets of a rule's head.
    fn indexes(&mut self, head: &Ref<Expr>) {
        match head.as_ref() {
            Expr::RefBrack { refr, index, .. } => {
                self.indexes(refr);
                self.expr(index);
            }
            Expr::RefDot { refr, .. } => self.indexes(refr),
            _ => {}
        }
    }

    /// What a path begins with, unless the whole path is known.
    fn base(&mut self, path: &Ref<Expr>, base: &Ref<Expr>) {
        if !self.reference(path) {
            self.expr(base);
        }
    }

    fn expr(&mut self, expr: &Ref<Expr>) {
        match expr.as_ref() {
            Expr::Var { span, .. } if span.text() == "data" => self.reads_data = true,
            Expr::RefDot { refr, .. } => self.base(expr, refr),
            Expr::RefBrack { refr, index, .. } => {
                self.base(expr, refr);
                self.expr(index);
            }
            Expr::Array { items, .. } | Expr::Set { items, .. } => self.exprs(items),
            Expr::Object { fields, .. } => {
                for (_, key, value) in fields {
                    self.expr(key);
                    self.expr(value);
                }
            }
            Expr::ArrayCompr { term, query, .. } | Expr::SetCompr { term, query, .. } => {
                self.expr(term);
                self.query(query);
            }
            Expr::ObjectCompr {
                key, value, query, ..
            } => {
                self.expr(key);
                self.expr(value);
                self.query(query);
            }
            Expr::Call {
                span, fcn, params, ..
            } => {
                self.call(span, fcn, params.len());
                self.exprs(params);
            }
            Expr::UnaryExpr { expr, .. } => self.expr(expr),
            Expr::BinExpr { lhs, rhs, .. }
            | Expr::BoolExpr { lhs, rhs, .. }
            | Expr::ArithExpr { lhs, rhs, .. }
            | Expr::AssignExpr { lhs, rhs, .. } => {
                self.expr(lhs);
                self.expr(rhs);
            }
            Expr::Membership {
                key,
                value,
                collection,
                ..
            } => {
                if key.is_some() {
                    self.refuse(
                        expr.span(),
                        "`key, value in collection` is not available: write `collection[key] == value`",
                    );
                }
                self.exprs(key);
                self.expr(value);
                self.expr(collection);
            }
            _ => {}
        }
    }

    /// Whether a whole reference was seen to stay within the packages.
    fn reference(&mut self, expr: &Ref<Expr>) -> bool {
        let Ok(path) = get_path_string(expr, None) else {
            return false;
        };
        if path != "data" && !path.starts_with("data.") {
            return false;
        }
        self.refuse_objects(&path, expr.span());
        self.within(&path)
    }

    /// Without the objects that it looks for, a policy finds no violation and allows everything.
    fn refuse_objects(&mut self, path: &str, span: &Span) {
        let read = OBJECTS.iter().find(|root| {
            path == **root
                || path
                    .strip_prefix(**root)
                    .is_some_and(|rest| rest.starts_with('.'))
        });
        if let Some(root) = read.filter(|_| !self.within(path)) {
            let why = format!(
                "{root} is not available: policies written as text see no other objects of the cluster"
            );
            self.refuse(span, &why);
        }
    }

    /// `regorus` takes keywords that it does not know for those that it knows.
    fn refuse_keyword(&mut self, path: &str, span: &Span) {
        if let Some(keyword) = path.strip_prefix("future.keywords.")
            && !KEYWORDS.contains(&keyword)
        {
            self.refuse(span, &format!("{path} is not available"));
        }
    }

    /// The first problem is the one that is reported.
    fn refuse(&mut self, span: &Span, why: &str) {
        if self.problem.is_none() {
            self.problem = Some(span.error(why).to_string().trim_start().to_owned());
        }
    }

    fn data(&mut self, path: &str) {
        if path == "data" || path.starts_with("data.") && !self.within(path) {
            self.reads_data = true;
        }
    }

    fn within(&self, path: &str) -> bool {
        self.packages.iter().any(|package| {
            path == package
                || path
                    .strip_prefix(package)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    fn call(&mut self, span: &Span, function: &Ref<Expr>, arguments: usize) {
        let Ok(path) = get_path_string(function, None) else {
            return;
        };
        // `regorus` returns all pairs at once.
        if path == "walk" && arguments == 1 {
            self.refuse(
                span,
                "`[path, value] := walk(x)` is not available: write `walk(x, [path, value])`",
            );
        }
        let local = format!("{}.{path}", self.package);
        let imported = self.imports.iter().find_map(|(alias, target)| {
            let rest = path.strip_prefix(alias.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then(|| format!("{target}{rest}"))
        });
        let known = self.functions.contains(&local)
            || self.functions.contains(&path)
            || imported.is_some_and(|path| self.functions.contains(&path))
            || path == "print"
            || BUILTINS.contains_key(path.as_str())
            || functions::NAMES.contains(&path.as_str());
        if !known {
            self.refuse(span, &functions::missing(&path));
        }
    }
}
