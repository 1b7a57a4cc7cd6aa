"""Letters with names, addresses and numbers, with their annotation. Usage: generate.py ASSETS"""

import json
import random
import sys
from pathlib import Path

FIRST_NAMES = """Ann Bola Chen Divya Emeka Farah Grace Hugo Ines Jamal Karin Liam Mei Nadia Omar Priya Quentin Rosa Sofia Tariq
Uma Viktor Wanda Yusuf Zoe Will Mark May Rose Bill Art Hope Miles"""
LAST_NAMES = """Adeyemi Baker Costa Dubois Eriksen Fischer Garcia Hughes Ito Jones Kowalski Larsen Meyer Novak Okafor Patel Quinn
Rossi Schmidt Tanaka Usman Varga Wright Young Zhang Hill Brook King Park Price"""
STREETS = """Mill Lane
High Street
Station Road
Church Walk
Park Avenue
Bridge Street
Elm Grove
Kings Close
Abbey Gardens"""
TOWNS = "Leeds Bath York Derby Cardiff Dundee Exeter Truro Reading Rugby Hull Stirling"
MONTHS = "January February March April May June July August September October November December"
SENTENCES = """Dear {NAME}, thank you for your letter of last week.
My name is {NAME} and I live at {ADDRESS}.
Please call me on {PHONE} or write to {EMAIL}.
The refund was paid to {ACCOUNT}, as agreed with {NAME}.
Our patient {NAME}, born {BIRTHDAY}, was seen again in May.
{NAME} of {ADDRESS} has not answered our calls.
Send the contract to {EMAIL}; a copy goes to {NAME}.
According to our records you were born on {BIRTHDAY}.
I spoke to {NAME} on the phone ({PHONE}) about the price.
Kind regards, {NAME}
The invoice 2024-{NOISE} of 3 March is still open.
Will you mark the order {NOISE} as paid?
We hope to reply within 14 days.
The park at King Street reopens in May.
Please rate our service from 1 to 10.
Transfer 120.50 to {ACCOUNT} and quote {NOISE}.
Her sister {NAME} can be reached at {PHONE} after 6 pm.
The meeting of 12 May was moved to room {NOISE}."""


def digits(rng, n):
    return "".join(rng.choice("0123456789") for _ in range(n))


def one(rng, words):
    return rng.choice(words.split())


def name(rng):
    first, last = one(rng, FIRST_NAMES), one(rng, LAST_NAMES)
    forms = (
        f"{first} {last}",
        f"{rng.choice(('Mr', 'Ms', 'Dr'))} {last}",
        f"{first[0]}. {last}",
        first,
        f"{last}, {first}",
    )
    text = rng.choices(forms, (6, 3, 1, 2, 1))[0]
    return rng.choices((text, text.lower(), text.upper()), (12, 1, 1))[0]


def phone(rng):
    return rng.choice(
        (
            f"0{digits(rng, 3)} {digits(rng, 3)} {digits(rng, 4)}",
            f"+44 {digits(rng, 4)} {digits(rng, 6)}",
            f"0{digits(rng, 10)}",
        )
    )


def email(rng):
    person = one(rng, FIRST_NAMES) + rng.choice((".", "_", "")) + one(rng, LAST_NAMES)
    return f"{person}@{rng.choice(('mail', 'post', 'web'))}.example".lower()


def account(rng):
    number = f"GB{digits(rng, 2)} BARC {digits(rng, 4)} {digits(rng, 4)} {digits(rng, 4)} {digits(rng, 2)}"
    return rng.choice(
        (number, number.replace(" ", ""), f"{digits(rng, 2)}-{digits(rng, 2)}-{digits(rng, 2)} {digits(rng, 8)}")
    )


def address(rng):
    street = f"{rng.randint(1, 200)} {rng.choice(STREETS.splitlines())}"
    return rng.choice(
        (
            street,
            f"{street}, {one(rng, TOWNS)}",
            f"{street}, {one(rng, TOWNS)} {rng.choice('BLSM')}{digits(rng, 1)} {digits(rng, 1)}AB",
        )
    )


def birthday(rng):
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1930, 2006)
    return rng.choice(
        (f"{day} {MONTHS.split()[month - 1]} {year}", f"{day:02}/{month:02}/{year}", f"{year}-{month:02}-{day:02}")
    )


MADE_BY = {"NAME": name, "PHONE": phone, "EMAIL": email, "ACCOUNT": account, "ADDRESS": address, "BIRTHDAY": birthday}


def letter(rng):
    text, spans = "", []
    for sentence in rng.sample(SENTENCES.splitlines(), rng.randint(2, 5)):
        text += " " if text else ""
        while "{" in sentence:
            before, _, rest = sentence.partition("{")
            label, _, sentence = rest.partition("}")
            text += before
            part = MADE_BY[label](rng) if label in MADE_BY else digits(rng, 4)
            if label in MADE_BY:
                spans.append({"start": len(text), "end": len(text) + len(part), "label": label})
            text += part
        text += sentence
    return {"text": text, "spans": spans, "answer": "accept"}


assets = Path(sys.argv[1])
if not any(assets.glob("train.*")):  # otherwise these are letters of your own
    for split, n, seed in (("train", 300, 0), ("dev", 400, 1), ("test", 400, 2)):
        rng = random.Random(seed)
        lines = [json.dumps(letter(rng)) + "\n" for _ in range(n)]
        (assets / f"{split}.jsonl").write_text("".join(lines), encoding="utf8")
