"""Composes sentences in other languages from grammatically compatible parts."""

from __future__ import annotations

from random import Random

from training.prompts import vocabulary as m

Parts = tuple[tuple[str, ...], ...]


def _parts(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


GERMAN: tuple[tuple[str, Parts], ...] = (
    (
        "{0} hat {1} {2}, dass {3} {4}.",
        (
            _parts("""
                Der Bürgermeister; Die Ministerin; Ein Sprecher der Polizei; Die Zeitung; Der Trainer; Meine
                Schwester; Der Verband der Lehrer; Die Präsidentin; Eine Studie; Das Unternehmen; Der Arzt;
                Die Regierung
            """),
            _parts("""
                gestern; am Montag; in {place}; vor einer Woche; am Rande des Treffens; im Radio; nach
                langem Zögern; überraschend; zum ersten Mal; vor dem Ausschuss
            """),
            _parts(
                "erklärt; angekündigt; bestätigt; mitgeteilt; bestritten; geschrieben; behauptet; ergänzt"
            ),
            _parts("""
                die neue Brücke; das alte Krankenhaus; der Vertrag mit {country}; die Schule am Fluss; der
                Zug nach {place}; das Projekt; die Ausstellung; der Haushalt; die Wahl; der Flughafen
            """),
            _parts("""
                im nächsten Jahr fertig wird; viel zu teuer ist; noch vor dem Winter beginnt; geschlossen
                werden muss; den Bürgern wenig nützt; ein großer Erfolg war; verschoben worden ist; mehr als
                {number} Millionen Euro kostet; die Erwartungen nicht erfüllt; von allen Seiten gelobt wird
            """),
        ),
    ),
    (
        "{0} {1} {2}, {3}.",
        (
            _parts(
                "Viele Menschen; Die Nachbarn; Unsere Gäste; Junge Familien; Die Fans; Etwa {number} "
                "Schüler; Experten"
            ),
            _parts("""
                freuen sich; warten seit Stunden; sprechen darüber; bleiben zu Hause; reisen nach {place};
                arbeiten länger; sorgen sich; stehen früh auf
            """),
            _parts(
                "bei jedem Wetter; im Sommer; trotz der Kälte; wie jedes Jahr; ohne es zu wissen; mit "
                "großer Geduld"
            ),
            _parts("""
                weil die Preise steigen; obwohl es regnet; damit niemand zu spät kommt; bevor das Konzert
                beginnt; wenn die Ferien anfangen; während andere schlafen; sobald das Licht ausgeht; seit
                die Fabrik geschlossen ist
            """),
        ),
    ),
    (
        "{0} {1} {2} {3}.",
        (
            _parts(
                "Der Film; Das Buch; Die Reise; Das Spiel; Der Bericht; Die Geschichte; Das Hotel; Der "
                "Kurs; Die Suppe"
            ),
            _parts("gefiel; half; schadete; gehörte; fehlte; nützte"),
            _parts(
                "mir; uns; den Kindern; meinem Vater; der Lehrerin; den meisten Besuchern; dem Verein "
                "aus {place}"
            ),
            _parts(
                "sehr; überhaupt nicht; von Anfang an; trotz allem; mehr als erwartet; nur am zweiten "
                "Tag; schon immer"
            ),
        ),
    ),
)
FRENCH: tuple[tuple[str, Parts], ...] = (
    (
        "{0} {1} {2} {3}.",
        (
            _parts(
                "Le maire; La ministre; Mon frère; Le directeur; Une étude; Le journal; Notre voisine; "
                "L'équipe"
            ),
            _parts(
                "a annoncé; a confirmé; n'a pas expliqué; a longtemps caché; a présenté; vient de "
                "publier; a critiqué"
            ),
            _parts(
                "la fermeture de l'usine; le nouveau projet; les résultats; la hausse des prix; le "
                "voyage à {place}"
            ),
            _parts(
                "hier soir; la semaine dernière; devant {number} personnes; sans hésiter; à la radio; "
                "malgré la pluie"
            ),
        ),
    ),
)
SPANISH: tuple[tuple[str, Parts], ...] = (
    (
        "{0} {1} {2} {3}.",
        (
            _parts(
                "El alcalde; La profesora; Mi hermana; El gobierno; La empresa; El entrenador; Nuestro "
                "vecino; La prensa"
            ),
            _parts("anunció; explicó; olvidó; celebró; rechazó; presentó; vendió; defendió; encontró"),
            _parts(
                "el nuevo plan; la casa vieja; los resultados; la propuesta; un libro sobre {place}; las "
                "entradas"
            ),
            _parts(
                "ayer por la tarde; sin ninguna duda; con mucha alegría; ante {number} personas; a pesar "
                "del frío"
            ),
        ),
    ),
)
ITALIAN: tuple[tuple[str, Parts], ...] = (
    (
        "{0} {1} {2} {3}.",
        (
            _parts(
                "Il sindaco; La maestra; Mio zio; Il giornale; La squadra; Il medico; La nostra vicina; "
                "Il museo"
            ),
            _parts(
                "ha presentato; ha venduto; ha difeso; ha dimenticato; ha spiegato; ha trovato; ha rifiutato"
            ),
            _parts(
                "la nuova proposta; i risultati; il viaggio a {place}; la vecchia casa; i biglietti; il libro"
            ),
            _parts(
                "ieri sera; senza esitare; con grande gioia; davanti a {number} persone; nonostante la "
                "pioggia"
            ),
        ),
    ),
)
LANGUAGES = {"German": GERMAN, "French": FRENCH, "Spanish": SPANISH, "Italian": ITALIAN}
WEIGHTS = (6, 1, 1, 1)


def sentence(rng: Random) -> tuple[str, str]:
    """(name of the language, one or two sentences in it)."""
    language = rng.choices(list(LANGUAGES), WEIGHTS)[0]
    return language, " ".join(_compose(rng, LANGUAGES[language]) for _ in range(rng.choice((1, 1, 1, 2))))


def _compose(rng: Random, forms: tuple[tuple[str, Parts], ...]) -> str:
    form, parts = rng.choice(forms)
    text = form.format(*(rng.choice(options) for options in parts))
    places, countries = (
        rng.choice(m.PLACES),
        rng.choice(("Polen", "Italien", "Japan", "Kanada", "Kenia", "Chile")),
    )
    return text.format(place=places, country=countries, number=rng.randint(2, 900))
