import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Value, canonical_name
from jobmanager.requests.rsl import MAX_BYTES, MAX_DEPTH, Relation, RslError, read_rsl, render_rsl

KNOWN = {"HOME": "/home/ana", "LOGNAME": "ana"}


def values_of(text: str) -> tuple[Value, ...]:
    (relation,) = read_rsl(f"&(a = {text})", KNOWN)
    return relation.values


def refusal_of(text: str) -> str:
    with pytest.raises(RslError) as caught:
        read_rsl(text, KNOWN)
    return str(caught.value)


def test_relations_keep_their_order_their_spelling_and_their_place() -> None:
    relations = read_rsl("&(samgrid_type = pythia)\n  (Max_Wall_Time=60)(* minutes *)\n(samgridtype = command)\n")
    assert [(item.name, item.values, item.line, item.column) for item in relations] == [
        ("samgrid_type", ("pythia",), 1, 3),
        ("Max_Wall_Time", ("60",), 2, 4),
        ("samgridtype", ("command",), 3, 2),
    ]


@pytest.mark.parametrize(
    "text",
    ["&(a=b)", "(a=b)", "& ( a = b )", "(* c *) & (* c *) (a (**) = (* = ) *) b)(***)", "\t&\r\n(a\n=\r\nb)\r\n"],
    ids=["conjunction", "without the ampersand", "spaces", "comments", "line ends"],
)
def test_white_space_comments_and_the_ampersand_do_not_matter(text: str) -> None:
    assert read_rsl(text) == (Relation("a", ("b",)),)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("b", ("b",), id="word"),
        pytest.param("b c  d", ("b", "c", "d"), id="words"),
        pytest.param("/usr/bin/g++ x&y|z ~/*.root ?", ("/usr/bin/g++", "x&y|z", "~/*.root", "?"), id="odd words"),
        pytest.param("größe µ→eγ", ("größe", "µ→eγ"), id="not ASCII"),
        pytest.param('"b c"', ("b c",), id="double quotes"),
        pytest.param('"say ""yes"""', ('say "yes"',), id="double quotes doubled"),
        pytest.param("'it''s'", ("it's",), id="single quotes doubled"),
        pytest.param("""'"' "'" """, ('"', "'"), id="the other quote inside"),
        pytest.param("\"\" ''", ("", ""), id="empty texts"),
        pytest.param('"(* = ^ # $(HOME) \n"', ("(* = ^ # $(HOME) \n",), id="nothing is special in quotes"),
        pytest.param("^*b*", ("b",), id="chosen delimiter"),
        pytest.param('^%50%% "it\'s"% ^^x^^^ ^ y ', ('50% "it\'s"', "x^", "y"), id="chosen delimiter doubled"),
        pytest.param('b"c"d', ("b", "c", "d"), id="quotes end a word"),
        pytest.param("""'b'"c" """, ("b", "c"), id="quoted texts that touch stay two"),
        pytest.param("(b c)", (("b", "c"),), id="sequence"),
        pytest.param("b (c (d e) f)(g)", ("b", ("c", ("d", "e"), "f"), ("g",)), id="nested sequences"),
        pytest.param("b#c", ("bc",), id="concatenation"),
        pytest.param("\"b \" # 'c' # ^xdx e", ("b cd", "e"), id="concatenation of quoted texts"),
        pytest.param("$(HOME)", ("/home/ana",), id="variable"),
        pytest.param('$(HOME)#"/x y"', ("/home/ana/x y",), id="variable concatenated"),
        pytest.param("$(HOME)/x", ("/home/ana/x",), id="word touches a variable"),
        pytest.param("/h/$(LOGNAME)/$(LOGNAME)$(HOME)", ("/h/ana/ana/home/ana",), id="variables touch"),
        pytest.param("$(HOME) /x", ("/home/ana", "/x"), id="space parts a variable from a word"),
        pytest.param("'x'$(HOME)'y'", ("x", "/home/ana", "y"), id="quoted text that touches a variable stays apart"),
        pytest.param("(x)$(HOME)(y)", (("x",), "/home/ana", ("y",)), id="sequence that touches a variable stays apart"),
        pytest.param("a#b$(HOME)#c d", ("ab/home/anac", "d"), id="both concatenations"),
        pytest.param("$(NO x)", ("x",), id="default"),
        pytest.param("$(HOME x)", ("/home/ana",), id="default not needed"),
        pytest.param("$(HOME $(NO))", ("/home/ana",), id="default not needed is not read"),
        pytest.param("x$(NO $(LOGNAME)s#$(NO 1))y", ("xanas1y",), id="default with variables"),
        pytest.param("(NAME $(HOME)/x)", (("NAME", "/home/ana/x"),), id="variable in a sequence"),
    ],
)
def test_values_are_read_as_globus_reads_them(text: str, values: tuple[Value, ...]) -> None:
    assert values_of(text) == values


def test_substitutions_hold_for_later_relations_and_later_definitions() -> None:
    text = """&(rsl_substitution = (TOP /data) (RUN $(TOP)/run1))
               (a = $(RUN)/x)
               (RSLSubstitution = (RUN $(RUN)b) (HOME "/else where"))
               (a = $(RUN) $(HOME))"""
    assert read_rsl(text, KNOWN) == (Relation("a", ("/data/run1/x",)), Relation("a", ("/data/run1b", "/else where")))
    assert KNOWN["HOME"] == "/home/ana"


def test_a_variable_is_not_known_before_its_definition() -> None:
    text = "&(a = $(TOP))\n(rsl_substitution = (TOP /data))"
    expected = (
        "line 1, column 7: the variable TOP is not defined; (rsl_substitution = (TOP value)) before this defines it"
    )
    assert refusal_of(text) == expected


def test_names_of_variables_are_compared_exactly() -> None:
    assert "the variable home is not defined" in refusal_of("&(a = $(home))")


@pytest.mark.parametrize("definition", ["x", "(x)", "(x y z)", "(x (y))", "((x) y)", "(x y) z"])
def test_a_definition_is_a_name_and_a_text(definition: str) -> None:
    assert "rsl_substitution takes (NAME value) pairs" in refusal_of(f"&(rsl_substitution = {definition})(a = b)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", 'line 1, column 1: expected "&" or "(", found the end of the request', id="empty"),
        pytest.param("&\n\n", 'line 3, column 1: expected "(", found the end of the request', id="no relation"),
        pytest.param("a = b", 'line 1, column 1: expected "&" or "(", found "a"', id="no parentheses"),
        pytest.param("&(a = b))", 'line 1, column 9: expected "(", found ")"', id="one parenthesis too many"),
        pytest.param("&(a b = c)", 'line 1, column 5: expected "=", found "b"', id="two names"),
        pytest.param("&(a)", 'line 1, column 4: expected "=", found ")"', id="no value"),
        pytest.param("&(a = )", 'line 1, column 7: expected a value, found ")"', id="empty value"),
        pytest.param("&(a = ())", 'line 1, column 8: expected a value, found ")"', id="empty sequence"),
        pytest.param("&(a = b#)", 'line 1, column 9: expected a value, found ")"', id="half a concatenation"),
        pytest.param(
            "&(a = (b)#c)", 'line 1, column 10: expected a value or ")", found "#"', id="sequence concatenated"
        ),
        pytest.param("&(a = $())", 'line 1, column 9: expected a variable\'s name, found ")"', id="no variable"),
        pytest.param(
            "&(a = $((b)))", 'line 1, column 9: expected a variable\'s name, found "("', id="bracketed variable"
        ),
        pytest.param(
            "&(a = $(NO b c))",
            'line 1, column 14: "$(NO ...)" takes one default; join several with "#" or quote them',
            id="two defaults",
        ),
        pytest.param("&(= b)", 'line 1, column 3: expected an attribute\'s name, found "="', id="no name"),
        pytest.param('&("a" = b)', 'line 1, column 3: expected an attribute\'s name, found "a"', id="quoted name"),
        pytest.param(
            "&(2a = b)",
            'line 1, column 3: "2a" is no attribute\'s name (a letter or _, then letters, digits, _ . -)',
            id="name with a digit first",
        ),
        pytest.param(
            "&(a = b)\n(c = d\n(e = f)",
            'line 3, column 4: expected a value or ")", found "="; a value with "=" in it needs quotes, '
            'or the "(" of line 2, column 1 is not closed',
            id="parenthesis forgotten before the next relation",
        ),
        pytest.param(
            "&(a = --seed=5)",
            'line 1, column 13: expected a value or ")", found "="; a value with "=" in it needs quotes',
            id="equals sign in a word",
        ),
        pytest.param(
            "&(a = +5)",
            'line 1, column 7: expected a value, found "+"; a value with "+" in it needs quotes',
            id="plus sign at the beginning of a word",
        ),
        pytest.param(
            "&(a = 5$)",
            'line 1, column 8: a variable is written $(NAME); a value with "$" in it needs quotes',
            id="dollar sign",
        ),
        pytest.param("&(a = b)\n (c = d", 'line 2, column 2: this "(" is never closed', id="open relation"),
        pytest.param("&(a = b (c)", 'line 1, column 2: this "(" is never closed', id="open relation after a sequence"),
        pytest.param("&(a = (b\nc", 'line 1, column 7: this "(" is never closed', id="open sequence"),
        pytest.param("&(a = $(HOME", 'line 1, column 7: this "$(" is never closed', id="open variable"),
        pytest.param(
            '&(a = "b)\n(c = d)',
            'line 1, column 7: the text quoted here is never closed (a " inside it is written twice)',
            id="open double quote",
        ),
        pytest.param(
            "&(a = 'it''s)",
            "line 1, column 7: the text quoted here is never closed (a ' inside it is written twice)",
            id="open single quote with a doubled one inside",
        ),
        pytest.param(
            "&(a = ^*b)",
            "line 1, column 7: the text quoted here is never closed (its delimiter, the character after ^, ends it)",
            id="open chosen delimiter",
        ),
        pytest.param("&(a = b)\n (* c )", "line 2, column 2: this comment is never closed by *)", id="open comment"),
        pytest.param(
            "+(&(a = b))(&(c = d))",
            "line 1, column 1: only one request is understood, &(attribute = value)(attribute = value), "
            'no multi-request with "+"',
            id="multi-request",
        ),
        pytest.param(
            "|(a = b)(a = c)",
            "line 1, column 1: only one request is understood, &(attribute = value)(attribute = value), "
            'no alternatives with "|"',
            id="disjunction",
        ),
        pytest.param(
            "&(a = b)(&(c = d))",
            "line 1, column 10: only one request is understood, &(attribute = value)(attribute = value), "
            'with one "&" at the beginning and no requests inside it',
            id="nested request",
        ),
        pytest.param(
            "&((a = b))",
            "line 1, column 3: only one request is understood, &(attribute = value)(attribute = value), "
            "no requests inside it",
            id="relation in two parentheses",
        ),
    ],
)
def test_a_refusal_says_where_and_what_was_expected(text: str, message: str) -> None:
    assert refusal_of(text) == message


@pytest.mark.parametrize("operator", ["!=", "<", "<=", ">", ">="])
def test_no_comparison_but_equality_is_understood(operator: str) -> None:
    start = 'line 2, column 8: only "=" is understood between an attribute and its values, not '
    assert refusal_of(f"&(a = b)\n(count {operator} 5)").startswith(start + operator[0])


def test_an_error_carries_its_line_and_column() -> None:
    with pytest.raises(RslError) as caught:
        read_rsl("&(a = b)\n  (c == d)")
    assert (caught.value.line, caught.value.column) == (2, 7)


@pytest.mark.parametrize(("character", "name"), [("\0", "U+0000"), ("\x1b", "U+001B"), ("\ud800", "U+D800")])
def test_a_character_that_no_xml_document_carries_is_refused_even_in_quotes(character: str, name: str) -> None:
    assert (
        refusal_of(f'&(a =\n"b{character}")') == f"line 2, column 3: the character {name} cannot be part of a request"
    )


def test_the_length_is_bounded_in_bytes() -> None:
    room = MAX_BYTES - len("&(a=)")
    assert read_rsl(f"&(a={'x' * room})")[0].values == ("x" * room,)
    assert "GRAM takes 64000 at most" in refusal_of(f"&(a={'x' * (room + 1)})")
    assert "GRAM takes 64000 at most" in refusal_of(f"&(a={'é' * (room // 2 + 1)})")


def test_nesting_is_bounded() -> None:
    deepest = values_of("(" * MAX_DEPTH + "x" + ")" * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        (deepest,) = deepest  # type: ignore[assignment]
    assert deepest == ("x",)
    too_deep = f"more than {MAX_DEPTH} parentheses are open here"
    assert too_deep in refusal_of("&(a = " + "(" * (MAX_DEPTH + 1) + "x" + ")" * (MAX_DEPTH + 1) + ")")


@pytest.mark.parametrize(
    "text",
    ["(" * 60_000, "&(a=" + "(" * 30_000 + "x" + ")" * 30_000 + ")", "&(a=" + "$(N " * 12_000 + "x" + ")" * 12_001],
    ids=["parentheses", "sequences", "defaults"],
)
def test_a_nest_of_any_depth_is_an_rsl_error(text: str) -> None:
    assert refusal_of(text).startswith("line 1, column ")


def test_definitions_that_double_one_another_are_bounded() -> None:
    doubling = "".join("(X $(X)$(X))" for _ in range(16))
    message = refusal_of(f"&(rsl_substitution = (X 0123456789){doubling})(a = $(X))")
    assert "the variables of this request grow to more than 64000 characters" in message


STORABLE = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff") | st.sampled_from("\t\n\r")
SPECIAL = st.sampled_from("+&|()=<>!\"'^#$* \nab")
TEXTS = st.text(STORABLE | SPECIAL, max_size=12)
VALUES: st.SearchStrategy[Value] = st.recursive(
    TEXTS, lambda inner: st.lists(inner, min_size=1, max_size=4).map(tuple), max_leaves=10
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(
    lambda name: canonical_name(name) != "rslsubstitution"
)
RELATIONS = st.builds(Relation, NAMES, st.lists(VALUES, min_size=1, max_size=4).map(tuple))


@given(st.lists(RELATIONS, min_size=1, max_size=5).map(tuple))
def test_what_is_rendered_reads_back_to_the_same_relations(relations: tuple[Relation, ...]) -> None:
    assert read_rsl(render_rsl(relations)) == relations


def test_a_rendered_request_has_one_relation_a_line_and_quotes_only_where_needed() -> None:
    relations = read_rsl('&(executable=/bin/echo)(arguments="a" "b c" "say ""x""" a\'=\'b)(environment=(N 1)(M ""))')
    assert render_rsl(relations) == (
        '&(executable = /bin/echo)\n (arguments = a "b c" "say ""x""" a "=" b)\n (environment = (N 1) (M ""))\n'
    )


@given(st.text(max_size=60) | st.text(SPECIAL, max_size=60) | st.text(SPECIAL, max_size=60).map("&(a = ".__add__))
def test_no_text_raises_anything_but_an_rsl_error(text: str) -> None:
    try:
        relations = read_rsl(text, KNOWN)
    except RslError as error:
        place = (error.line, error.column)
    else:
        place = (1, 1)
        assert not relations or read_rsl(render_rsl(relations)) == relations
    lines = text.split("\n")
    assert place[0] <= len(lines)
    assert 1 <= place[1] <= len(lines[place[0] - 1]) + 1
