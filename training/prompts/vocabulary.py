"""The words of composed training prompts, collected for this project; none come from a benchmark."""

from __future__ import annotations


def _list(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


SCIENCE = _list("""
    photosynthesis; plate tectonics; black holes; the water cycle; DNA replication; vaccines; the periodic
    table; chemical bonding; acids and bases; electromagnetic induction; Newton's laws of motion; the theory
    of relativity; entropy; natural selection; the human heart; the immune system; the nervous system; cell
    division; mitochondria; antibiotics; stem cells; volcanoes; earthquakes; ocean currents; the greenhouse
    effect; the ozone layer; coral reefs; rainforests; food chains; bird migration; the life cycle of stars;
    comets; the moons of Jupiter; tides; lunar eclipses; superconductors; lasers; nuclear fusion; nuclear
    fission; radioactivity; semiconductors; solar panels; wind turbines; batteries; electric motors; jet
    engines; suspension bridges; concrete; steel; plastics; fermentation; enzymes; proteins; vitamins;
    hormones; sleep; memory; vision; hearing; genetics; cloning; bacteria; viruses; fungi; insects; bees;
    sharks; octopuses; dinosaurs; fossils; glaciers; deserts; hurricanes; tornadoes; lightning; rainbows;
    sound waves; gravity; friction; magnetism; pressure; density; osmosis; diffusion; evaporation; crystals;
    diamonds; carbon; hydrogen; oxygen; helium; gold; copper; prime numbers; the Pythagorean theorem;
    probability; statistics; calculus; matrices; logarithms; graph theory; cryptography; machine learning;
    neural networks; databases; operating systems; compilers; the internet; Wi-Fi; GPS; satellites;
    telescopes; microscopes; X-rays; MRI scanners; blood types; diabetes; asthma; malaria; the common cold;
    photons; quarks; antimatter; dark matter; the Big Bang; quantum entanglement; the Doppler effect;
    thermodynamics; catalysts; polymers; nanotechnology; biodiversity; invasive species; pollination;
    composting; soil; groundwater
""")

HUMANITIES = _list("""
    the Roman Empire; ancient Egypt; ancient Greece; the Silk Road; the Black Death; the Renaissance; the
    Reformation; the French Revolution; the American Civil War; the Industrial Revolution; the First World
    War; the Second World War; the Cold War; the fall of the Berlin Wall; the Ottoman Empire; the Mongol
    Empire; the British Empire; the Meiji Restoration; the Russian Revolution; the Great Depression; the
    civil rights movement; women's suffrage; apartheid; the partition of India; the Inca civilization; the
    Maya civilization; the Aztecs; the Vikings; feudalism; the Magna Carta; democracy; monarchy; socialism;
    capitalism; globalization; inflation; unemployment; supply and demand; taxation; central banks; free
    trade; the United Nations; the European Union; human rights; freedom of speech; the rule of law;
    constitutions; elections; propaganda; journalism; nationalism; colonialism; slavery; migration;
    urbanization; education; Buddhism; Islam; Christianity; Hinduism; Judaism; Confucianism; Stoicism;
    existentialism; utilitarianism; ethics; free will; logic; Plato; Aristotle; Socrates; Kant; Nietzsche;
    Confucius; Shakespeare; Homer; Dante; Cervantes; Tolstoy; Jane Austen; Charles Dickens; Mark Twain;
    Virginia Woolf; Gabriel Garcia Marquez; poetry; the novel; mythology; fairy tales; theatre; opera; jazz;
    classical music; hip hop; cinema; photography; architecture; Gothic cathedrals; Impressionism; Cubism;
    sculpture; pottery; calligraphy; fashion; cooking traditions; the Olympic Games; chess; language
    families; writing systems; translation; archaeology; the printing press; maps and navigation; Leonardo
    da Vinci; Mozart; Beethoven; Picasso; Van Gogh; Frida Kahlo; Marie Curie; Isaac Newton; Charles Darwin;
    Albert Einstein; Nikola Tesla; Ada Lovelace; Alan Turing; Mahatma Gandhi; Nelson Mandela; Abraham
    Lincoln; Winston Churchill; Cleopatra; Julius Caesar; Napoleon; Joan of Arc
""")

EVERYDAY = _list("""
    learning to cook; baking bread; growing tomatoes; keeping a garden; raising a puppy; adopting a cat;
    running a marathon; yoga; meditation; time management; public speaking; job interviews; writing a
    resume; changing careers; working from home; saving money; buying a house; renting an apartment; paying
    off debt; planning a wedding; moving abroad; learning Spanish; learning the guitar; playing the piano;
    reading more books; keeping a diary; making friends; raising teenagers; helping with homework; packing a
    suitcase; camping; hiking in the mountains; cycling to work; public transport; electric cars; road
    trips; train travel; budget airlines; beach holidays; museums; street food; coffee; tea; chocolate;
    cheese; wine; vegetarian diets; healthy snacks; breakfast; school lunches; losing weight; strength
    training; swimming; football; basketball; tennis; cricket; video games; board games; social media;
    smartphones; online shopping; passwords; privacy; recycling; saving energy; saving water; home repairs;
    painting a room; choosing a mattress; cleaning the kitchen; laundry; minimalism; birthdays; Christmas;
    New Year; Thanksgiving; neighbours; noise; grief; stress; anxiety; loneliness; happiness; motivation;
    procrastination; teamwork; leadership; feedback; negotiation; customer service; marketing; starting a
    small business; freelancing; volunteering; charity; local politics; libraries; farmers' markets;
    thunderstorms; snow
""")

JOBS = _list("""
    doctor; nurse; teacher; engineer; pilot; chef; baker; farmer; gardener; carpenter; electrician; plumber;
    firefighter; police officer; lawyer; judge; journalist; novelist; poet; photographer; painter; musician;
    actor; dancer; film director; architect; astronaut; astronomer; biologist; chemist; physicist;
    mathematician; programmer; data scientist; librarian; historian; translator; tour guide; bus driver;
    train conductor; sailor; fisherman; mechanic; tailor; hairdresser; barista; waiter; shopkeeper;
    accountant; banker; economist; mayor; diplomat; soldier; detective; veterinarian; dentist; pharmacist;
    psychologist; coach; referee; mountaineer; beekeeper; clockmaker; blacksmith; museum curator; postman
""")

CHARACTERS = _list("""
    a wise old wizard; a pirate captain; a time traveller from the year 3000; a medieval knight; a talking
    cat; a friendly robot; a grumpy lighthouse keeper; a famous detective; a Roman senator; a Viking
    explorer; a stern headmistress; a jazz singer of the 1920s; a dragon who guards a library; a ghost in an
    old hotel; a space station commander; a village healer; a travelling merchant; a strict personal
    trainer; a kind grandmother; a sarcastic chess master; an alien visiting Earth for the first time;
    Sherlock Holmes; Leonardo da Vinci; Cleopatra; Albert Einstein; Marie Curie; Shakespeare; Napoleon; a
    museum guide; a startup founder; a game show host; a football commentator; a news anchor; a philosophy
    professor; a mountain guide; a submarine captain; a court jester; a beekeeper; a train conductor; a
    mayor
""")

FIRST_NAMES = _list("""
    Anna; Ben; Carla; David; Elena; Felix; Grace; Hassan; Ivan; Julia; Kofi; Laura; Marco; Nadia; Oscar;
    Priya; Quentin; Rosa; Sam; Tara; Umar; Vera; Walter; Xin; Yusuf; Zoe; Aisha; Bruno; Chloe; Diego; Emma;
    Fatima; George; Hannah; Isaac; Jack; Karen; Leo; Maria; Noah; Olivia; Peter; Rachel; Simon; Tom; Ursula;
    Victor; Wendy; Mei; Kenji; Amara; Lars; Ingrid
""")
LAST_NAMES = _list("""
    Adams; Baker; Chen; Diaz; Evans; Fischer; Garcia; Hughes; Ito; Jensen; Khan; Lopez; Müller; Novak;
    Okafor; Patel; Quinn; Rossi; Silva; Turner; Ueda; Vargas; Weber; Young; Zhang; Brown; Clark; Dubois;
    Ferrari; Green; Haddad; Ivanova; Kim; Larsen; Moreau; Nguyen; Olsen; Park; Rahman; Schmidt; Taylor;
    Walker; Abebe; Cohen; Murphy; Kowalski; Petrov; Santos
""")
PLACES = _list("""
    Lisbon; Nairobi; Toronto; Osaka; Cusco; Bergen; Marseille; Chennai; Perth; Denver; Glasgow; Krakow;
    Havana; Accra; Hanoi; Valencia; Leipzig; Dublin; Seattle; Montreal; Auckland; Istanbul; Cairo; Lima;
    Oslo; Prague; Vienna; Athens; Boston; Chicago; Naples; Porto; Ghent; Zurich; Helsinki; Riga; Tbilisi;
    Amman; Muscat; Colombo; Manila; Busan; Taipei; Quito; Bogota; Montevideo; Salvador; Dakar; Kigali;
    Lusaka; Durban; Fez; Tunis; Malmo; Aarhus; Utrecht; Lyon; Seville; Turin
""")
COUNTRIES = _list("""
    France; Germany; Italy; Spain; Portugal; Norway; Sweden; Finland; Poland; Greece; Turkey; Egypt;
    Morocco; Kenya; Nigeria; Ghana; Ethiopia; South Africa; India; China; Japan; South Korea; Vietnam;
    Thailand; Indonesia; Australia; New Zealand; Canada; Mexico; Brazil; Argentina; Chile; Peru; Colombia;
    Cuba; Iceland; Ireland; the Netherlands; Belgium; Switzerland; Austria; Hungary; Romania; Ukraine;
    Russia; Iran; Iraq; Saudi Arabia; Pakistan; Bangladesh; Nepal; Mongolia; the United States; the United
    Kingdom; Denmark; Croatia; Serbia; Bolivia; Tanzania; Senegal
""")
ANIMALS = _list("""
    elephant; dolphin; wolf; eagle; penguin; octopus; honeybee; camel; kangaroo; polar bear; tiger; giraffe;
    crocodile; owl; salmon; bat; ant; whale; cheetah; hedgehog; fox; otter; parrot; frog; snake; horse; cow;
    sheep; goat; rabbit; squirrel
""")
GOODS = _list("""
    apples; oranges; pencils; notebooks; books; tickets; cupcakes; marbles; stickers; eggs; bottles of
    water; chairs; flowers; sandwiches; shirts; candles; toy cars; stamps; postcards; bags of flour; boxes
    of tea; cookies; balloons; potatoes; lamps
""")
FORMS = _list("""
    short story; poem; haiku; limerick; blog post; newspaper article; product review; letter to a friend;
    formal email; speech; diary entry; dialogue between two people; movie scene; song; fable; fairy tale;
    advertisement; travel guide; recipe; obituary; press release; cover letter; thank-you note; invitation;
    tweet; podcast introduction; book review; essay; children's story; monologue; FAQ; newsletter; toast for
    a wedding; complaint letter; apology; slogan; job advertisement
""")
TONES = _list("""
    funny; serious; optimistic; melancholic; formal; casual; dramatic; simple; poetic; persuasive; neutral;
    sarcastic; warm; suspenseful; encouraging; critical; nostalgic; professional; playful; humble
""")
AUDIENCES = _list("""
    a ten-year-old; a high school student; a university student; a beginner; an expert; my grandmother; a
    busy manager; someone who has never heard of it; a curious tourist; a sceptical friend; a class of
    teenagers; an engineer; a new employee
""")
CODE_TASKS = _list("""
    reverses a string; checks whether a number is prime; computes the factorial of a number; returns the
    n-th Fibonacci number; sorts a list with bubble sort; sorts a list with merge sort; sorts a list with
    quicksort; does a binary search; counts the words in a text; counts the vowels in a string; finds the
    largest number in a list; finds the second largest number; removes duplicates from a list; merges two
    sorted lists; checks whether a string is a palindrome; checks whether two words are anagrams; computes
    the greatest common divisor; converts Celsius to Fahrenheit; converts a number to binary; converts Roman
    numerals to integers; validates an email address; reads a CSV file and sums a column; counts the lines
    of a file; downloads a web page; parses a JSON file; finds all files with a given extension; generates a
    random password; plays rock, paper, scissors; simulates rolling two dice; implements a stack; implements
    a queue; implements a linked list; implements a binary search tree; finds the shortest path in a graph;
    does a breadth-first search; does a depth-first search; flattens a nested list; transposes a matrix;
    multiplies two matrices; computes the mean and the median of a list; groups words by their first letter;
    finds the longest word in a sentence; capitalizes every word; encrypts a text with a Caesar cipher;
    prints a multiplication table; prints the first hundred numbers with FizzBuzz; finds the missing number
    in a list; rotates a list by k places; checks for balanced brackets; computes compound interest; formats
    a date; measures how long a function takes; caches results of another function; retries a failing
    operation; splits a list into chunks; finds common elements of two lists; computes a running total;
    draws a triangle of stars; solves the Tower of Hanoi; generates all permutations of a list; generates
    all subsets; checks whether a year is a leap year; computes the power set size; converts seconds to
    hours and minutes; finds the intersection of two intervals; evaluates a simple arithmetic expression
""")
LANGUAGES = ("Python", "JavaScript", "Java", "C++", "Go", "Rust", "C", "Ruby", "TypeScript", "Bash", "PHP")
TOPICS = SCIENCE + HUMANITIES + EVERYDAY
