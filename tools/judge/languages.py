"""Names of programming languages in a prompt: what to write, and in which fence."""

from __future__ import annotations

_SPOKEN = {
    "python": "Python", "cpp": "C++", "c": "C", "java": "Java", "go": "Go", "nodejs": "JavaScript", "js": "JavaScript",
    "typescript": "TypeScript", "rust": "Rust", "csharp": "C#", "php": "PHP", "ruby": "Ruby", "bash": "Bash",
    "kotlin_script": "Kotlin script", "swift": "Swift", "scala": "Scala", "perl": "Perl", "lua": "Lua", "R": "R",
    "julia": "Julia", "D_ut": "D", "racket": "Racket",
}  # fmt: skip
_TAGS = {"nodejs": "javascript", "js": "javascript", "csharp": "csharp", "kotlin_script": "kotlin", "D_ut": "d"}
_NOTES = {
    "java": " Its class is `Main`.",
    "nodejs": " It runs in Node.js.",
    "js": " It runs in Node.js.",
    "scala": " Its object is `Main`.",
}


def spoken_language(language: str) -> str:
    """Return a language's name for a reader: `C++` for `cpp`."""
    return _SPOKEN.get(language, language)


def fence_tag(language: str) -> str:
    """Return the word behind a fence for a language: `javascript` for `nodejs`."""
    return _TAGS.get(language, language)


def program_request(language: str, input_file: str = "", output_file: str = "") -> str:
    """Return the request for a program that reads and prints.

    Args:
        language: language of the program, as the sandbox names it.
        input_file: file that the program reads instead of standard input.
        output_file: file that the program writes instead of standard output.
    """
    source = f"the file `{input_file}`" if input_file else "standard input"
    target = f"writes the answer to the file `{output_file}`" if output_file else "prints the answer to standard output"
    name = spoken_language(language)
    article = "an" if name[0] in "AEIOU" or name == "R" else "a"
    return f"Write {article} {name} program that reads {source} and {target}.{_NOTES.get(language, '')}"


def answer_request(language: str) -> str:
    """Return the request for the form of the answer."""
    return f"Answer with the whole program in one block that begins with ```{fence_tag(language)}."
